"""Readings of a GPU's sensors, as nvidia-smi prints them."""

from __future__ import annotations

import pytest

from tilesmith.lab.bench.measuring.sensors import Reading, Sensors, parsed


def test_reads_a_line_of_nvidia_smi() -> None:
    assert parsed("1980, 412.50, 0x0000000000000004\n") == Reading(1980.0, 412.5, 4)


@pytest.mark.parametrize("line", ["", "[N/A], [N/A], [N/A]", "1980"])
def test_silence_is_no_reading(line: str) -> None:
    assert parsed(line) is None


def test_names_the_reasons_seen_since_last_asked() -> None:
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


def test_is_not_asked_more_often_than_it_should() -> None:
    asked = 0

    def read() -> None:
        nonlocal asked
        asked += 1

    sensors = Sensors(read, seconds_apart=60.0)
    sensors.sample()
    sensors.sample()
    assert asked == 1
