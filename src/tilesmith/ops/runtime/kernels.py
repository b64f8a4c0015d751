"""Kernels as a torch operator: planned once per look of the arguments, known to torch.compile, cheap to call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.plan import Operand, Plan, imagining
from tilesmith.toolchain import interpreter

LIBRARY = torch.library.Library("tilesmith", "FRAGMENT")
MOST_PLANS = 4096  # kept per operator; a workload whose shapes never repeat must not grow without end

Planner = Callable[..., "Operand | tuple[Operand, ...]"]
Result = Any


_SCALARS = frozenset({int, float, bool, str, type(None), torch.dtype})


def look(arguments: Sequence[Any]) -> Hashable | None:
    """A key for all that decides how a call runs; None where an argument is none of these: a plain tensor, a number, a
    string, None, or several numbers.

    Plain means that reading memory at data_ptr() by the strides gives the values: no subclass, no lazy negation.
    """
    key: list[object] = [dispatch.epoch, torch.is_grad_enabled(), interpreter.is_interpreting()]
    try:
        for value in arguments:
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                if value.is_neg():
                    return None
                index = value.get_device()  # an integer is cheaper to hash than a device; only those of a GPU have one
                place = index if index >= 0 else value.device
                key += (
                    value.shape, value.stride(), value.dtype, place, value.requires_grad, value.data_ptr() & 15,
                )  # fmt: skip
            elif kind in _SCALARS:
                key += (kind, value)  # True is equal to 1, but not as good an argument
            elif (kind is tuple or kind is list) and all(type(one) in _SCALARS for one in value):
                key += (kind, *map(type, value), *value)
            else:
                return None
    except (NotImplementedError, RuntimeError):  # sparse and other layouts have no strides or no address
        return None
    return tuple(key)


def must_be_dispatched() -> bool:
    """Whether something listens to or transforms torch operators, and so has to be told of this one."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, which a kernel cannot follow."""
    if torch.compiler.is_compiling():  # the tracer follows them itself
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


class Kernels:
    """What `@kernels(name)` makes of a function that says, without computing, what comes out."""

    def __init__(self, name: str, result: Callable[..., Result]) -> None:
        self.name = name
        self.result = result
        self._planner: Planner | None = None
        self._composed: Callable[..., Result] | None = None
        self._plans: dict[Hashable, Plan] = {}
        LIBRARY.define(name + torch.library.infer_schema(result, mutates_args=()))
        LIBRARY.impl(name, self._run, "CUDA")
        LIBRARY.impl(name, self._run, "CPU")
        torch.library.register_fake(f"tilesmith::{name}", result, lib=LIBRARY)
        self.dispatched: Callable[..., Result] = getattr(torch.ops.tilesmith, name).default

    def plan(self, planner: Planner) -> Planner:
        """Decorator for the function that puts the launches on a plan."""
        self._planner = planner
        return planner

    def composed(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Decorator, instead of `plan`, for the function that computes by calling other kernels and PyTorch's own."""
        self._composed = function
        return function

    def __call__(self, *arguments: Any) -> Result:
        if must_be_dispatched():
            return self.dispatched(*arguments)
        if self._composed is not None:
            return self.way(arguments)(arguments)
        key = look(arguments)
        plan = self._plans.get(key)
        return plan.run(arguments) if plan is not None else self.way(arguments)(arguments)

    def way(self, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], Result]:
        """How calls that look like this one are computed eagerly."""
        composed = self._composed
        if composed is None and look(arguments) is None:  # what is composed is of parts, which look for themselves
            return lambda arguments: self.dispatched(*arguments)
        if _device_of(arguments).type == "meta":
            return self._imagine
        if composed is not None:
            return lambda arguments: composed(*arguments)
        try:
            return self.plan_for(*arguments).run
        except NotWalkable:
            return self._run_on_copies

    def _imagine(self, arguments: Sequence[Any]) -> Result:
        """On meta tensors there is nothing to compute; what would be launched can be recorded."""
        if _recorded is not None and self._composed is not None:
            self._composed(*arguments)
        elif _recorded is not None:
            try:
                plan = self.plan_for(*arguments)
            except NotWalkable:
                plan = self.plan_for(*_contiguous(arguments))
            _recorded.append(plan)
        return self.dispatched(*arguments)

    def plan_for(self, *arguments: Any) -> Plan:
        """The plan for arguments of this look, without running it."""
        key = look(arguments)
        plan = self._plans.get(key)
        if plan is None:
            plan = Plan(self.name, _device_of(arguments), arguments)
            assert self._planner is not None, f"{self.name} has no planner"
            outputs = self._planner(plan, *plan.operands)
            plan.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            if plan.device.type == "meta":  # cannot be run, so a later call must not find it
                return plan
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _run(self, *arguments: Any) -> Result:
        return self.way(arguments)(arguments)

    def _run_on_copies(self, arguments: Sequence[Any]) -> Result:
        """For layouts that no kernel walks in place: compute on contiguous copies, give back the promised layout."""
        copies = _contiguous(arguments)
        computed = self.plan_for(*copies).run(copies)
        promised = self.result(*arguments)
        if isinstance(promised, Tensor):
            return promised.copy_(computed)  # type: ignore[arg-type]  # one promised, one computed
        return tuple(place.copy_(values) for place, values in zip(promised, computed, strict=True))


_recorded: list[Plan] | None = None


@contextmanager
def recorded_plans(target: str = "cuda:90") -> Iterator[list[Plan]]:
    """Collect the plan of every call on meta tensors: what would be launched on such a GPU, without memory or a GPU."""
    global _recorded
    before, _recorded = _recorded, []
    try:
        with imagining(target):
            yield _recorded
    finally:
        _recorded = before


def _contiguous(arguments: Sequence[Any]) -> list[Any]:
    return [value.contiguous() if isinstance(value, Tensor) else value for value in arguments]


def _device_of(arguments: Sequence[Any]) -> torch.device:
    return next(value.device for value in arguments if isinstance(value, Tensor))


def kernels(name: str) -> Callable[[Callable[..., Result]], Kernels]:
    """Declare kernels as the torch operator `tilesmith::name`.

    Decorates a function of the tensors that returns empty tensors of the right look; its annotations are the schema.
    A planner, attached with `.plan`, says what to launch; or `.composed` attaches plain code that computes the result.
    """
    return lambda result: Kernels(name, result)
