"""Floors, shares of the limit and verdicts for invented figures."""

from __future__ import annotations

import pytest
import torch

from tilesmith.lab.bench.result import Row
from tilesmith.lab.bench.roofline.device_limits import Limits
from tilesmith.lab.bench.roofline.floor import floor, place_on_roofline, work_of
from tilesmith.lab.bench.roofline.verdict import power_cap, verdict
from tilesmith.spec import Case, Cost, Spec, Work

LIMITS = Limits(
    copy_tb_per_s=4.0,
    read_tb_per_s=4.4,
    matmul_tflop_per_s={"bf16": 700.0, "tf32": 350.0, "fp32": 50.0},
    launch_us=2.0,
    launch_host_us=5.0,
    cache_bytes=50 << 20,
    source="made up",
)
BF16 = torch.bfloat16


def row(device_ms: float | None, host_us: float = 1.0) -> Row:
    return Row("op", "case", {}, "bfloat16", "fwd", "tilesmith", device_ms=device_ms, host_us=host_us)


def said(device_ms: float, work: Work | None, host_us: float = 1.0) -> str:
    one = row(device_ms, host_us)
    if work is not None:
        place_on_roofline(one, work, LIMITS, BF16)
    return verdict(one, work, LIMITS, BF16) or ""


def test_the_floor_is_the_longer_of_bytes_and_flops() -> None:
    assert floor(Work(int(4.4e9), 1), LIMITS, BF16).ms == pytest.approx(1.0)
    assert floor(Work(1, int(700e9)), LIMITS, BF16).ms == pytest.approx(1.0)
    assert floor(Work(1, int(700e9 / 6)), LIMITS, torch.float32).ms == pytest.approx(1.0)


def test_the_share_of_the_limit_is_floor_over_time() -> None:
    one = row(device_ms=2.0)
    place_on_roofline(one, Work(int(4.4e9), 10), LIMITS, BF16)
    assert one.percent_of_limit == pytest.approx(50.0)
    assert one.tb_per_s == pytest.approx(2.2)
    assert one.notes == []


def test_share_above_the_limit_is_a_wrong_cost() -> None:
    one = row(device_ms=0.9)
    work = Work(int(4.4e9), 10)
    place_on_roofline(one, work, LIMITS, BF16)
    assert "111 % of the limit is impossible" in one.notes[0]
    assert (verdict(one, work, LIMITS, BF16) or "").startswith("wrong cost")


@pytest.mark.parametrize(("device_ms", "wrong"), [(0.9, False), (0.75, True)])
def test_gemm_may_exceed_the_measured_rate_slightly(device_ms: float, wrong: bool) -> None:
    one = row(device_ms=device_ms)
    work = Work(int(1e9), int(700e9))
    place_on_roofline(one, work, LIMITS, BF16)
    said = verdict(one, work, LIMITS, BF16) or ""
    assert bool(one.notes) == wrong
    expected = "wrong cost" if wrong else "compute-bound: 778 TFLOP/s, 111% of the matrix rate, the rate of"
    assert said.startswith(expected)


def test_data_in_l2_has_no_share_of_the_limit() -> None:
    one = row(device_ms=0.001)
    place_on_roofline(one, Work(1 << 20, 10), LIMITS, BF16)
    assert one.in_cache
    assert one.percent_of_limit is None


@pytest.mark.parametrize(
    ("device_ms", "work", "host_us", "expected"),
    [
        (1.05, Work(int(4.4e9), 10), 1.0, "memory-bound: 4.19 TB/s, 95% of the memory limit. This is the limit"),
        (
            1.4,
            Work(int(4.4e9), 10),
            1.0,
            "memory-bound: 3.14 TB/s, 71% of the memory limit. Look for repeated or narrow loads",
        ),
        (1.3, Work(10, int(700e9)), 1.0, "compute-bound: 538 TFLOP/s, 77% of the matrix rate. Try larger tiles"),
        (4.0, Work(int(4.4e9), int(70e9)), 1.0, "latency-bound: neither bytes (25%"),
        (0.01, Work(1 << 10, 10), 30.0, "launch-bound: the host needs 30.0 µs per call, the device 10.0"),
        (0.003, Work(1 << 10, 10), 1.0, "launch-bound: 3.0 µs, of which the launch takes 2.0"),
        (1.0, None, 1.0, "no verdict: the spec gives no cost"),
    ],
)
def test_verdict_names_the_bound(device_ms: float, work: Work | None, host_us: float, expected: str) -> None:
    assert said(device_ms, work, host_us).startswith(expected)


@pytest.mark.parametrize(
    ("device_ms", "clock_mhz", "throttled", "held"),
    [
        (1.25, 1500.0, ["power cap"], True),
        (2.0, 1500.0, ["power cap"], True),
        (1.05, 1500.0, ["power cap"], False),
        (1.25, 1950.0, ["power cap"], False),
        (1.25, 1500.0, ["thermal slowdown"], False),
        (1.25, None, ["power cap"], False),
    ],
)
def test_power_cap_explains_slow_arithmetic(
    device_ms: float, clock_mhz: float | None, throttled: list[str], held: bool
) -> None:
    one, work = row(device_ms), Work(10, int(700e9))
    place_on_roofline(one, work, LIMITS, BF16)
    one.verdict, one.clock_mhz, one.throttled = verdict(one, work, LIMITS, BF16), clock_mhz, throttled
    said = power_cap(one, highest_mhz=1980.0)
    assert (said or "").startswith("But the power cap held the clock at 1500 of 1980 MHz") == held
    assert (said is not None) == held


def test_power_cap_does_not_explain_slow_memory() -> None:
    one, work = row(device_ms=1.25), Work(int(4.4e9), 10)
    place_on_roofline(one, work, LIMITS, BF16)
    one.verdict, one.clock_mhz, one.throttled = verdict(one, work, LIMITS, BF16), 1500.0, ["power cap"]
    assert power_cap(one, highest_mhz=1980.0) is None


def test_work_depends_on_the_mode() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    spec = Spec(
        name="double", op=double, reference=double, cases=[Case("one")], make_inputs=lambda *_: {},
        cost=lambda case, dtype: Cost(Work(1, 2), Work(10, 20)),
    )  # fmt: skip
    works = {mode: work_of(spec, spec.cases[0], BF16, mode) for mode in ("fwd", "bwd", "both")}
    assert works == {"fwd": Work(1, 2), "bwd": Work(10, 20), "both": Work(11, 22)}
