"""Reading clocks, power and throttle reasons."""

from __future__ import annotations

import pytest

from tilesmith.lab.bench.measuring.sensors import Reading, Sensors, parsed


def test_reads_a_line_of_nvidia_smi() -> None:
    assert parsed("1980, 412.50, 0x0000000000000004\n") == Reading(1980.0, 412.5, 4)


@pytest.mark.parametrize("line", ["", "[N/A], [N/A], [N/A]", "1980"])
def test_empty_line_gives_no_reading(line: str) -> None:
    assert parsed(line) is None


def test_taken_returns_throttle_reasons_since_the_last_call() -> None:
    readings = iter(
        [Reading(1980, 400, 0x1), Reading(1700, 690, 0x4), Reading(1600, 700, 0x24), Reading(1980, 100, 0x1)]
    )
    sensors = Sensors(lambda: next(readings), seconds_apart=0.0)
    for _ in range(3):
        sensors.sample()
    seen = sensors.taken()
    assert (seen.clock_mhz, seen.power_w) == (1650, 695)
    assert seen.throttled == ["power cap", "thermal slowdown"]
    assert seen.highest_mhz == 1980
    sensors.sample()
    assert sensors.taken().throttled == [], "an idle GPU is not throttled"
    assert sensors.taken().clock_mhz is None


def test_sample_respects_the_interval() -> None:
    asked = 0

    def read() -> None:
        nonlocal asked
        asked += 1

    sensors = Sensors(read, seconds_apart=60.0)
    sensors.sample()
    sensors.sample()
    assert asked == 1
