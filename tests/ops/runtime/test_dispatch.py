"""Who computes a call, and with what configuration."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import pytest
import torch

import tilesmith as ts
from tilesmith.ops import SPECS, configured
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.plan import Plan
from tilesmith.spec import Case, Inputs, Spec
from tilesmith.toolchain import interpreter

silu, rms_norm = SPECS["silu"].op, SPECS["rms_norm"].op


@pytest.fixture(autouse=True)
def state_put_back() -> Iterator[None]:
    with ts.use("auto"):
        dispatch.forget()  # so that no call reuses what an earlier test cached
        yield


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the kernels that run, in order."""
    names: list[str] = []
    run = Plan.run

    def noted(plan: Plan, arguments: Any) -> Any:
        names.append(plan.kernels)
        return run(plan, arguments)

    monkeypatch.setattr(Plan, "run", noted)
    return names


@pytest.mark.parametrize("mode", ["auto", "triton", "torch"])
def test_cpu_tensors_are_computed_by_pytorch(spec: Spec, inputs: Inputs, runs: list[str], mode: Any) -> None:
    with ts.use(mode):
        spec.op(**inputs)
    assert not runs


def test_interpret_mode_runs_kernels_on_cpu_tensors(
    operator: Operator[..., Any], inputs: Inputs, runs: list[str]
) -> None:
    with ts.use("interpret"):
        operator(**inputs)
    with interpreter.interpreting():
        operator(**inputs)
    assert runs
    assert runs[: len(runs) // 2] == runs[len(runs) // 2 :]


def test_switching_the_interpreter_on_and_off_is_noticed(
    operator: Operator[..., Any], inputs: Inputs, runs: list[str]
) -> None:
    operator(**inputs)
    assert not runs
    with interpreter.interpreting():
        operator(**inputs)
    once = len(runs)
    assert once
    operator(**inputs)
    assert len(runs) == once


def test_torch_mode_overrides_the_interpreter(spec: Spec, inputs: Inputs, runs: list[str]) -> None:
    with ts.use("torch"), interpreter.interpreting():
        spec.op(**inputs)
    assert not runs


def test_mode_holds_from_the_call_on(runs: list[str]) -> None:
    ts.use("interpret")
    silu(torch.ones(4))
    ts.use("torch")
    silu(torch.ones(4))
    assert runs == ["silu_forward"]


def test_mode_ends_with_its_block() -> None:
    with ts.use("interpret"):
        assert dispatch.state().mode == "interpret"
        with ts.use("torch"):
            assert dispatch.state().mode == "torch"
        assert dispatch.state().mode == "interpret"
    assert dispatch.state().mode == "auto"


def test_mode_ends_when_its_block_raises() -> None:
    with pytest.raises(ZeroDivisionError), ts.use("interpret"):
        raise ZeroDivisionError
    assert dispatch.state().mode == "auto"


def test_unknown_mode_raises_and_changes_nothing() -> None:
    with pytest.raises(ValueError, match="use: mode is 'cuda', but must be one of auto, triton, torch, interpret"):
        ts.use("cuda")  # type: ignore[arg-type]  # what is tested
    assert dispatch.state().mode == "auto"


def test_mode_and_configuration_are_independent() -> None:
    with ts.use("interpret"), configured(BLOCK_SIZE=64):
        assert dispatch.state() == dispatch.State("interpret", (("BLOCK_SIZE", 64),))
        with configured(num_warps=2), ts.use("torch"):
            assert dispatch.state() == dispatch.State("torch", (("BLOCK_SIZE", 64), ("num_warps", 2)))
        assert dispatch.state() == dispatch.State("interpret", (("BLOCK_SIZE", 64),))


def outside_any_block(test: Callable[[], None]) -> Callable[[], None]:
    """Run a test in a thread of its own: the fixture above is a block."""

    @wraps(test)
    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test).result()

    return run


def _mode_in_thread() -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: dispatch.state().mode).result()


@outside_any_block
def test_mode_of_a_call_holds_for_all_threads() -> None:
    restore = ts.use("torch")
    try:
        assert _mode_in_thread() == "torch"
    finally:
        with restore:
            pass
    assert _mode_in_thread() == dispatch.state().mode == "auto"


@outside_any_block
def test_mode_of_a_block_holds_for_its_thread_alone() -> None:
    with ts.use("torch"):
        assert _mode_in_thread() == "auto"


@outside_any_block
def test_overlapping_blocks_of_threads_leave_the_mode_as_it_was() -> None:
    steps = [threading.Event() for _ in range(4)]
    modes: list[str] = []

    def first() -> None:
        with ts.use("torch"):
            steps[0].set()
            steps[1].wait(200)
            modes.append(dispatch.state().mode)
        steps[2].set()

    def second() -> None:
        steps[0].wait(200)
        with ts.use("triton"):
            steps[1].set()
            steps[2].wait(200)
            modes.append(dispatch.state().mode)

    threads = [threading.Thread(target=one) for one in (first, second)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert modes == ["torch", "triton"]
    assert dispatch.state().mode == _mode_in_thread() == "auto"


@outside_any_block
def test_blocks_made_in_one_order_and_entered_in_another() -> None:
    first, second = ts.use("torch"), ts.use("triton")
    with first:
        assert dispatch.state().mode == "torch"
        with second:
            assert dispatch.state().mode == "triton"
        with first:
            assert dispatch.state().mode == "torch"
    assert dispatch.state().mode == "auto"


@outside_any_block
def test_overlapping_blocks_of_tasks_leave_the_mode_as_it_was() -> None:
    async def task(mode: Any, modes: list[str]) -> None:
        with ts.use(mode):
            await asyncio.sleep(0)
            modes.append(dispatch.state().mode)

    async def both() -> list[str]:
        modes: list[str] = []
        await asyncio.gather(task("torch", modes), task("triton", modes))
        return modes

    assert asyncio.run(both()) == ["torch", "triton"]
    assert dispatch.state().mode == "auto"


@outside_any_block
def test_many_calls_keep_no_history() -> None:
    for number in range(3 * dispatch.MOST_PENDING):
        ts.use("torch" if number % 2 else "auto")
    assert dispatch.state().mode == "torch"
    ts.use("auto")
    assert len(dispatch._pending) <= dispatch.MOST_PENDING


def test_backward_runs_in_the_state_of_its_forward() -> None:
    """As in the threads of PyTorch's own in which gradients on a GPU are computed."""
    x = torch.randn(3, 4, requires_grad=True)
    with ts.use("interpret"), ts.ops.configured(BLOCK_SIZE=16):
        y = ts.ops.silu(x)
        forward = dispatch.state()
    seen: list[dispatch.State] = []
    original = dispatch.entered

    def entered(own: Any) -> Any:
        seen.append(own.state)
        return original(own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "entered", entered)
        thread = threading.Thread(target=lambda: y.sum().backward())  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        thread.start()
        thread.join()
    assert seen == [forward]
    assert x.grad is not None


def test_backward_outside_the_block_runs_the_kernels(runs: list[str]) -> None:
    x = torch.randn(5, 24, requires_grad=True)
    with ts.use("interpret"):
        y = silu(x)
    y.sum().backward()
    assert runs == ["silu_forward", "silu_backward"]
    assert x.grad is not None
    sigmoid = torch.sigmoid(x.detach())
    torch.testing.assert_close(x.grad, sigmoid * (1 + x.detach() * (1 - sigmoid)))


def planned(spec: Spec, case: Case) -> list[Plan]:
    with recorded_plans() as plans:
        spec.op(**spec.inputs(case, torch.float32, "meta"))
    return plans


def test_every_field_of_a_configuration_can_be_set(spec: Spec, small_case: Case) -> None:
    for choice in [choice for plan in planned(spec, small_case) for choice in plan.choices]:
        for name, value in choice.config.fields().items():
            other = value * 2 if value else 1
            with configured(**{name: other}):
                plans = planned(spec, small_case)
                assert any(chosen.config.fields().get(name) == other for plan in plans for chosen in plan.choices)
                for plan in plans:
                    chosen_here = {chosen.config for chosen in plan.choices}
                    for launch in [launch for launch in plan.launches if launch.config in chosen_here]:
                        assert launch.arguments.get(name, other) == other
                        assert launch.options().get(name, other) == other


def test_configuration_reaches_the_launch() -> None:
    with configured(BLOCK_SIZE=64, num_warps=2):
        (plan,) = planned(SPECS["silu"], Case("", rows=3, cols=200))
    (launch,) = plan.launches
    assert launch.arguments["BLOCK_SIZE"] == 64
    assert launch.options()["num_warps"] == 2
    assert launch.grid[0] >= 600 // 64


@pytest.mark.parametrize("block_size", [*(pytest.param(size, marks=pytest.mark.slow) for size in (16, 64, 8192)), 1])
def test_results_do_not_depend_on_the_configuration(spec: Spec, inputs: Inputs, block_size: int) -> None:
    with ts.use("interpret"), configured(BLOCK_SIZE=block_size, num_warps=1):
        torch.testing.assert_close(spec.op(**inputs), spec.reference(**inputs))


def test_unknown_fields_of_a_configuration_are_ignored(spec: Spec, small_case: Case) -> None:
    before = [launch for plan in planned(spec, small_case) for launch in plan.launches]
    with configured(NO_SUCH_FIELD=3):
        after = [launch for plan in planned(spec, small_case) for launch in plan.launches]
    assert [launch.config for launch in before] == [launch.config for launch in after]
    assert [launch.grid for launch in before] == [launch.grid for launch in after]
