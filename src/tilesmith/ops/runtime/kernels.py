"""Kernels as a torch operator: planned once for each look of a call, known to torch.compile, cheap to call.

The *look* of a call is the key of everything that planning depends on. Calls with the same look share one plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.plan import Operand, Plan, planning_for
from tilesmith.toolchain import interpreter

LIBRARY = torch.library.Library("tilesmith", "FRAGMENT")
MOST_PLANS = 4096  # kept for each operator; bounds the memory of a workload whose shapes never repeat

Planner = Callable[..., "Operand | tuple[Operand, ...]"]
Result = Any


_PLAIN = frozenset({Tensor, Parameter})
_SCALARS = frozenset({int, float, bool, str, type(None), torch.dtype})


def look(arguments: Sequence[Any]) -> tuple[object, ...] | None:
    """Return the look of a call; None where an argument is not a plain tensor, a number, a string, None, or a sequence
    of numbers.

    A tensor is plain if reading memory at data_ptr() by its strides gives its values: no subclass, no lazy negation.
    """
    key: list[object] = [dispatch.epoch(), torch.is_grad_enabled(), interpreter.is_interpreting()]
    try:
        for value in arguments:
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                if value.is_neg():
                    return None
                index = value.get_device()  # an integer is cheaper to hash than a device; only GPUs have an index
                place = index if index >= 0 else value.device
                key += (
                    value.shape, value.stride(), value.dtype, place, value.requires_grad, value.data_ptr() & 15,
                )  # fmt: skip
            elif kind in _SCALARS:
                key += (kind, value)  # the kind tells True from 1
            elif (kind is tuple or kind is list) and all(type(one) in _SCALARS for one in value):
                key += (kind, *map(type, value), *value)
            else:
                return None
    except (NotImplementedError, RuntimeError):  # sparse and other layouts have no strides or no address
        return None
    return tuple(key)


def must_be_dispatched() -> bool:
    """Whether PyTorch's dispatcher must see this call, because something listens to or transforms torch operators."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is active; kernels cannot follow either."""
    if torch.compiler.is_compiling():  # the tracer follows them itself
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


class Kernels:
    """A torch operator computed by kernels, as `@kernels(name)` declares it.

    `fake` returns empty tensors of the right shapes, strides and dtypes, without computing.
    """

    def __init__(self, name: str, fake: Callable[..., Result]) -> None:
        self.name = name
        self.fake = fake
        self._planner: Planner | None = None
        self._composed: Callable[..., Result] | None = None
        self._plans: dict[Hashable, Plan] = {}
        LIBRARY.define(name + torch.library.infer_schema(fake, mutates_args=()))
        LIBRARY.impl(name, self._run, "CUDA")
        LIBRARY.impl(name, self._run, "CPU")
        torch.library.register_fake(f"tilesmith::{name}", self._traced, lib=LIBRARY)
        self.dispatched: Any = getattr(torch.ops.tilesmith, name).default
        self._dispatch: Callable[..., Result] = getattr(self.dispatched, "_op", self.dispatched)
        if self._dispatch is not self.dispatched:  # a later PyTorch may call its dispatcher in another way
            self.dispatched._op = self._run_or_dispatch

    def plan(self, planner: Planner) -> Planner:
        """Attach, as a decorator, the function that puts the launches on a plan."""
        self._planner = planner
        return planner

    def composed(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Attach, as a decorator and instead of `plan`, a function that calls other kernels and PyTorch's operators."""
        self._composed = function
        return function

    def __call__(self, *arguments: Any) -> Result:
        if must_be_dispatched():
            return self.dispatched(*arguments)
        if self._composed is None:
            return self.with_look(look(arguments), arguments)
        if _first_tensor(arguments).is_meta:
            return self._run_on_meta(arguments)
        return self._composed(*arguments)

    def with_look(self, key: Hashable | None, arguments: Sequence[Any]) -> Result:
        """Compute a call outside of PyTorch's dispatcher. `key` is the look of its arguments."""
        plan = self._plans.get(key)
        return plan.run(arguments) if plan is not None else self.runner_for(arguments)(arguments)

    def runner_for(self, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], Result]:
        """Return the function that computes calls with this look eagerly."""
        composed = self._composed
        if composed is None and look(arguments) is None:  # composed kernels leave the look to their parts
            return lambda arguments: self.dispatched(*arguments)
        if _first_tensor(arguments).is_meta:
            return self._run_on_meta
        if composed is not None:
            return lambda arguments: composed(*arguments)
        try:
            return self.plan_for(*arguments).run
        except NotWalkable:
            return self._run_on_copies

    def _run_on_meta(self, arguments: Sequence[Any]) -> Result:
        """Return the fake result; inside `recorded_plans`, record the plan."""
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
        """Return the plan for calls with this look, without running it."""
        key = look(arguments)
        plan = self._plans.get(key)
        if plan is None:
            plan = Plan(self.name, _first_tensor(arguments).device, arguments)
            assert self._planner is not None, f"{self.name} has no planner"
            outputs = self._planner(plan, *plan.operands)
            plan.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            if plan.device.type == "meta":  # cannot run, so a later call must not find it
                return plan
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _traced(self, *arguments: Any) -> Result:
        _call_as_it_is_in_inductor(self.dispatched)
        return self.fake(*arguments)

    def _run_or_dispatch(self, *arguments: Any, **named: Any) -> Result:
        """Compute a call of the torch operator, as a compiled graph makes it.

        PyTorch's dispatcher has nothing to do for plain tensors without a gradient, and takes the host longer than the
        plan: rms_norm 45 µs instead of 16 on a CPU, with a launch that does nothing. A profiler sees dispatched calls.
        """
        if named or torch.is_grad_enabled() or torch._C._autograd._profiler_enabled() or must_be_dispatched():
            return self._dispatch(*arguments, **named)
        for value in arguments:
            if isinstance(value, Tensor) and (type(value) not in _PLAIN or value.is_meta or value.is_neg()):
                return self._dispatch(*arguments)
        return self._run(*arguments)

    def _run(self, *arguments: Any) -> Result:
        """Compute a call with plain tensors that are not on the meta device."""
        if self._composed is not None:
            return self._composed(*arguments)
        return self.with_look(look(arguments), arguments)

    def _run_on_copies(self, arguments: Sequence[Any]) -> Result:
        """Compute on contiguous copies and return the promised layout, for layouts that no kernel walks in place."""
        copies = _contiguous(arguments)
        computed = self.plan_for(*copies).run(copies)
        promised = self.fake(*arguments)
        if isinstance(promised, Tensor):
            return promised.copy_(computed)  # type: ignore[arg-type]  # one promised, one computed
        return tuple(place.copy_(values) for place, values in zip(promised, computed, strict=True))


def _call_as_it_is_in_inductor(operator: Any) -> None:
    """Tell Inductor, where it is in use, that it has no code of its own for this operator.

    Inductor finds out by itself. But up to PyTorch 2.11 it then writes down all that the arguments depend on, read or
    not: for the last operator in the backward of GPT-2 medium it did not end in 150 s.
    """
    graph: Any = sys.modules.get("torch._inductor.graph")
    private = "lowerings", "make_fallback", "get_layout_constraint_tag", "tag_to_layout_constraint"
    if graph is None or not all(hasattr(graph, name) for name in private):  # a later PyTorch may have other names
        return
    if operator not in graph.lowerings:
        tag = graph.get_layout_constraint_tag(operator, with_default=True)
        graph.make_fallback(operator, layout_constraint=graph.tag_to_layout_constraint(tag))


_recorded: list[Plan] | None = None


@contextmanager
def recorded_plans(target: str = "cuda:90") -> Iterator[list[Plan]]:
    """Collect the plan of every call on meta tensors: what the call would launch on this GPU. Needs no GPU."""
    global _recorded
    before, _recorded = _recorded, []
    try:
        with planning_for(target):
            yield _recorded
    finally:
        _recorded = before


def _contiguous(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments with contiguous strides. `contiguous()` leaves an empty tensor's strides as they are."""

    def copied(value: Tensor) -> Tensor:
        return value.contiguous() if value.numel() else value.new_empty(value.shape)

    return [copied(value) if isinstance(value, Tensor) else value for value in arguments]


def _first_tensor(arguments: Sequence[Any]) -> Tensor:
    for value in arguments:  # every call of composed kernels comes here: no generator
        if isinstance(value, Tensor):
            return value
    raise TypeError("no argument is a tensor")


def kernels(name: str) -> Callable[[Callable[..., Result]], Kernels]:
    """Declare kernels as the torch operator `tilesmith::name`.

    Decorates a function that returns empty tensors as the kernels will return them. Its annotations are the schema.
    A planner, attached with `.plan`, says what to launch. Or `.composed` attaches plain code that computes the result.
    """
    return lambda fake: Kernels(name, fake)
