"""The time that a launch is expected to take, from its PTX and its trace."""

from __future__ import annotations

import planted
import pytest
import torch
from reading import HOPPER

from tilesmith.hardware.instruction_costs import L2_LATENCY, MEMORY_LATENCY, cost_of
from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.metrics.predicted_time import run_through
from tilesmith.lab.inspect.model import AccessFacts
from tilesmith.lab.inspect.tracing import suspects

HEAD = '.file 1 "/there" "kernel.py"\n.visible .entry kernel() {\n'
LOAD = ".loc 1 5 1\n ld.global.b32 {address}, [ {address} + 0 ];\n"


def access(*, requests: int, new: float = 1.0) -> AccessFacts:
    """Return a load on line 5 whose bytes are new in this share, of one program with one warp."""
    return AccessFacts(
        kind="load", file="/there/kernel.py", line=5, column=0, argument="x", element_bytes=4, shape=(32,),
        executions=requests, bytes=100 * requests, unique_bytes=round(100 * requests * new), accesses_per_element=1.0,
        repeats=1.0, again_in_program=0.0, masked_fraction=0.0, requests=requests, sectors_per_request=4.0,
        ideal_sectors_per_request=4.0, efficiency=1.0, vector_bytes=4, pipelined=False, bulk=False, values=None,
    )  # fmt: skip


def test_dependent_loads_wait_for_each_other() -> None:
    dependent = run_through(HEAD + 3 * LOAD.format(address="%r1"), [access(requests=3)], 1, 1)
    independent = "".join(LOAD.format(address=f"%r{number}") for number in range(3))
    together = run_through(HEAD + independent + " add.f32 %r9, %r2, %r2;\n", [access(requests=3)], 1, 1)
    assert dependent.waiting == pytest.approx(2 * MEMORY_LATENCY, rel=0.01)
    assert together.waiting == pytest.approx(MEMORY_LATENCY, rel=0.01)


def test_bytes_read_before_come_from_l2() -> None:
    twice = HEAD + 2 * LOAD.format(address="%r1")
    assert run_through(twice, [access(requests=2, new=0.0)], 1, 1).waiting == pytest.approx(L2_LATENCY, rel=0.01)


def test_loop_repeats_as_often_as_the_trace_says() -> None:
    body = "$L__BB0_1:\n" + LOAD.format(address="%r1") + " ex2.approx.f32 %r2, %r1;\n @%p1 bra $L__BB0_1;\n ret;\n"
    found = run_through(HEAD + body, [access(requests=50)], 1, 1)
    assert found.pipes["special functions"] == 50 * cost_of("ex2.approx.f32").cycles
    assert found.cycles == pytest.approx(50 * MEMORY_LATENCY, rel=0.05)


def test_unrolled_loop_and_its_rest_share_the_iterations() -> None:
    unrolled = "$L__BB0_1:\n" + 4 * LOAD.format(address="%r1") + " ex2.approx.f32 %r2, %r1;\n @%p1 bra $L__BB0_1;\n"
    rest = "$L__BB0_2:\n" + LOAD.format(address="%r1") + " rsqrt.approx.f32 %r3, %r1;\n @%p2 bra $L__BB0_2;\n"
    found = run_through(HEAD + unrolled + rest, [access(requests=4 * 6 + 3)], 1, 1)
    assert found.pipes["special functions"] == (6 + 3) * cost_of("ex2.approx.f32").cycles


def test_large_copy_is_limited_by_memory_and_a_small_one_by_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "SECONDS", 0.0)  # the addresses of all programs do not change the prediction

    def copied(count: int) -> tuple[float | None, float | None, str | None]:
        x, y = torch.randn(count), torch.empty(count)
        grid = (count // 1024,)
        found = inspect(lambda: planted.copy[grid](x, y, count, BLOCK=1024), targets=HOPPER, device="h200", programs=4)
        facts = found.kernels[0].targets["cuda:90"]
        return facts.predicted_us, facts.predicted_floor_us, facts.predicted_limit

    expected, least, limit = copied(1 << 24)
    assert expected is not None
    assert least is not None
    assert limit == "memory"
    assert 1.05 * least < expected < 1.4 * least
    expected, least, limit = copied(1024)
    assert expected is not None
    assert least is not None
    assert limit == "latency"
    assert least < 0.1 < 2 < expected < 3


def test_a_walk_down_a_column_touches_a_sector_for_each_element() -> None:
    x, y = torch.randn(64, 64), torch.empty(64, 64)
    found = inspect(lambda: planted.column_walk[(64,)](x, y, 64, 64, BLOCK=64), targets=HOPPER)
    touched = {one.argument: one.touched_bytes for one in found.kernels[0].accesses if one.kind == "load"}
    assert touched == {"x_ptr": 8 * x.nbytes}


def test_other_targets_have_no_predicted_time() -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    found = inspect(lambda: planted.copy[(1,)](x, y, 1024, BLOCK=1024), targets=("cuda:80",))
    facts = found.kernels[0].targets["cuda:80"]
    assert facts.predicted_floor_us is not None
    assert facts.predicted_us is None
