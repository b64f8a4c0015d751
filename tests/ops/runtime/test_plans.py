"""Plans are made once for each look of a call, keep no tensors, and launch what they say."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS, configured
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import look, recorded_plans
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import CONTIGUOUS, LAYOUTS, Case, Inputs, Spec, is_differentiable

silu = cast("Operator[..., Any]", SPECS["silu"].op)


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with ts.use("interpret"):
        dispatch.forget()
        yield


@pytest.fixture
def plannings(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Record every plan that is made from here on."""
    made: list[Plan] = []
    prepare = Plan.__post_init__

    def noted(plan: Plan) -> None:
        made.append(plan)
        prepare(plan)

    monkeypatch.setattr(Plan, "__post_init__", noted)
    return made


def test_second_call_with_the_same_look_plans_nothing(spec: Spec, inputs: Inputs, plannings: list[Plan]) -> None:
    spec.op(**inputs)
    once = len(plannings)
    assert once
    for _ in range(2):
        others = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
        torch.testing.assert_close(spec.op(**others), spec.reference(**others))
    assert len(plannings) == once


@pytest.mark.usefixtures("only_plans")
def test_recording_gradients_does_not_plan_again(spec: Spec, inputs: Inputs, plannings: list[Plan]) -> None:
    def step() -> None:
        spec.op(**{name: _requiring_gradient(value) for name, value in inputs.items()})

    step()
    planned_once = len(plannings)
    step()
    assert len(plannings) == planned_once


def _requiring_gradient(value: Any) -> Any:
    return value.clone().requires_grad_() if is_differentiable(value) else value


@pytest.mark.usefixtures("only_plans")
def test_other_layout_or_dtype_is_planned_again(
    spec: Spec, operator: Operator[..., Any], small_case: Case, plannings: list[Plan]
) -> None:
    given = [spec.inputs(small_case, torch.float32, "cpu", layout) for layout in LAYOUTS]
    given.append(spec.inputs(small_case, torch.float16, "cpu"))
    for inputs in given:
        spec.op(**inputs)
    of_forward = [plan for plan in plannings if plan.kernels == operator.forward.name]
    # An expanded batch of one has the same look. Alternatives have kernels of their own.
    looks = {look(list(inputs.values())) for inputs in given}
    by_forward = {look(list(inputs.values())) for inputs in given if not has_alternative(operator, inputs)}
    # Composed kernels may convert every layout before they call their parts.
    assert len(of_forward) == len(by_forward) if of_forward else len(plannings) > 1
    assert len(looks) > len(LAYOUTS) - 1


def has_alternative(operator: Operator[..., Any], inputs: Inputs) -> bool:
    """Return whether other kernels than the operator's own compute a call."""
    arguments = operator.completed(**inputs)
    return any(when(*arguments) for when, _ in operator._alternatives)


@pytest.mark.usefixtures("only_plans")
def test_other_configuration_is_planned_again_and_the_first_is_kept(
    spec: Spec, inputs: Inputs, plannings: list[Plan]
) -> None:
    spec.op(**inputs)
    once = len(plannings)
    with configured(num_warps=2):
        spec.op(**inputs)
    spec.op(**inputs)
    with configured(num_warps=2):
        spec.op(**inputs)
    assert len(plannings) == 2 * once


def test_call_keeps_no_tensor_alive(spec: Spec, inputs: Inputs) -> None:
    copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    spec.op(**copies)
    alive = [weakref.ref(value) for value in copies.values() if isinstance(value, Tensor)]
    del copies
    assert alive
    for generation in (1, 2):  # the first takes no time, and is enough
        if any(reference() is not None for reference in alive):
            gc.collect(generation)
    assert not [reference for reference in alive if reference() is not None]


def test_number_of_plans_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesmith.ops.runtime.kernels.MOST_PLANS", 4)
    monkeypatch.setattr("tilesmith.ops.runtime.operator.MOST_PLANS", 4)
    silu.forward._plans.clear()
    silu._runners.clear()
    for size in range(1, 12):
        silu(torch.ones(size))
        assert len(silu.forward._plans) <= 4
        assert len(silu._runners) <= 4


def test_forward_and_backward_on_meta_tensors_are_recorded(
    spec: Spec, operator: Operator[..., Any], small_case: Case
) -> None:
    inputs = {
        name: _requiring_gradient(value) for name, value in spec.inputs(small_case, torch.float32, "meta").items()
    }
    with recorded_plans() as plans:
        made = spec.op(**inputs)
        forward_only = len(plans)
        outputs = [made] if isinstance(made, torch.Tensor) else list(made)
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
        both = len(plans)
    spec.op(**inputs)
    assert forward_only >= 1
    assert len(plans) == both, "recorded outside of the recording"


def test_meta_tensors_can_be_used_again_after_a_recording() -> None:
    x = torch.empty(3, 5, device="meta", requires_grad=True)
    for _ in range(2):
        with recorded_plans() as plans:
            silu(x).sum().backward()
        assert [plan.kernels for plan in plans] == ["silu_forward", "silu_backward"]
    silu(x).sum().backward()
    assert len(plans) == 2


def test_unwalkable_layout_is_recorded_as_run_on_copies() -> None:
    x = torch.empty(4, 4, 4, 4, 4, 6, device="meta")[::2, ::2, ::2, ::2, ::2, ::2]
    with recorded_plans() as plans:
        silu(x)
    assert [plan.kernels for plan in plans] == ["silu_forward"]


def test_launch_has_the_arguments_of_its_kernel(spec: Spec) -> None:
    for case in spec.cases:
        for layout in LAYOUTS if case is spec.cases[1] else (CONTIGUOUS,):
            with recorded_plans() as plans:
                spec.op(**spec.inputs(case, torch.float16, "meta", layout))
            for launch in [launch for plan in plans for launch in plan.launches]:
                assert set(launch.arguments) == set(launch.kernel.arg_names)


def test_empty_grid_is_not_launched() -> None:
    with recorded_plans() as plans:
        silu(torch.empty(0, 5, device="meta"))
    assert plans[0].launches == []
    assert [output.shape for output in plans[0].outputs] == [(0, 5)]


def test_misaligned_arguments_are_planned_as_such() -> None:
    for offset, aligned in ((0, True), (1, False), (4, True)):
        x = torch.zeros(40)[offset : offset + 32]
        plan = silu.forward.plan_for(x)
        (operand,) = (one for one in plan.operands if isinstance(one, Operand))
        assert operand.aligned is aligned
        assert (operand.data_ptr() % 16 == 0) is aligned


class TestLook:
    """The look differs for everything that planning depends on, and for nothing else."""

    x = torch.zeros(4, 8)

    def test_look_is_the_same_for_other_values(self) -> None:
        assert look((self.x, 1e-6)) == look((torch.ones(4, 8), 1e-6))
        assert look((self.x,)) == look((torch.nn.Parameter(self.x.clone(), requires_grad=False),))

    @pytest.mark.parametrize(
        "other",
        [
            torch.zeros(8, 4),
            torch.zeros(8, 4).t(),
            torch.zeros(4, 8, dtype=torch.float16),
            torch.zeros(33)[1:].view(4, 8),
            torch.zeros(4, 8, requires_grad=True),
            torch.zeros(4, 8, device="meta"),
            None,
        ],
        ids=["shape", "strides", "dtype", "alignment", "gradient", "device", "none"],
    )
    def test_look_differs_for(self, other: Tensor | None) -> None:
        assert look((self.x,)) != look((other,))

    def test_look_differs_for_another_number(self) -> None:
        assert look((self.x, 1e-6)) != look((self.x, 1e-5))

    def test_look_differs_for_another_state(self) -> None:
        before = look((self.x,))
        with ts.use("torch"):
            assert look((self.x,)) != before
        with configured(BLOCK_SIZE=8):
            assert look((self.x,)) != before
        with torch.no_grad():
            assert look((self.x,)) != before
        assert look((self.x,)) == before
        dispatch.forget()
        assert look((self.x,)) != before

    def test_look_is_none_where_memory_does_not_hold_the_values(self) -> None:
        class Marked(Tensor):
            pass

        assert look((torch._neg_view(self.x),)) is None
        assert look((self.x.as_subclass(Marked),)) is None
        assert look(([self.x],)) is None


def test_threads_do_not_interfere() -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        x = torch.randn(3 + seed, 50, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        for _ in range(5):
            y = silu(x)
            (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
            sigmoid = torch.sigmoid(x)
            if not torch.allclose(gradient, sigmoid * (1 + x * (1 - sigmoid)), atol=1e-6):
                failures.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
