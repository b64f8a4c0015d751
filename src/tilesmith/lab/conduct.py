"""Rules for an operator beyond right values: each call computes again, into new memory, with the operator's kernels.

A result that is kept and returned again, a buffer that is used again, and a result that PyTorch computes are right at
the first call. Each function here yields one sentence for each fault that it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.comparison import identical
from tilesmith.lab.expected import Call, Expected
from tilesmith.lab.store_log import StoreLog, explained
from tilesmith.spec import Inputs
from tilesmith.toolchain import interpreter

Op = Callable[..., Any]
# A small case is called this many times more: several buffers may take turns.
CALLS_OF_FEW = 16
FEW_BYTES = 1024  # of all inputs


def shared_with_inputs(outputs: Sequence[Tensor], inputs: Inputs, reference: Sequence[Tensor]) -> Iterator[str]:
    """Yield the outputs that share memory with an input, unless the reference's outputs are views too."""
    taken = {_start(value): name for name, value in inputs.items() if isinstance(value, Tensor) and value.numel()}
    if any(output._is_view() for output in reference):
        return
    for number, output in enumerate(outputs):
        name = taken.get(_start(output)) if output.numel() else None
        if name is not None:
            place = f"output {number}" if len(outputs) > 1 else "the output"
            yield f"{place} shares memory with the input {name}: a later change of one changes the other"


def other_numbers(inputs: Inputs, others: Inputs) -> Inputs:
    """Return the inputs with every second element from `others`. The first and the last element stay.

    Integers stay, because indices and lengths depend on each other, unless no input has floating-point numbers.
    """
    floating = [name for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point()]
    changed = dict(inputs)
    for name in floating or [name for name, value in inputs.items() if isinstance(value, Tensor)]:
        value, other = inputs[name], others[name]
        if value.shape != other.shape:
            continue
        stays = torch.zeros(value.numel(), dtype=torch.bool, device=value.device)
        if value.numel() > 3:
            stays[::2] = True
            stays[-1] = True
        changed[name] = torch.where(stays.view(value.shape), value.detach(), other.detach())
    return changed


def repeated_calls(
    op: Op,
    reference: Op,
    inputs: Inputs,
    others: Sequence[Inputs],
    differentiable: Sequence[str],
    first: Sequence[Tensor],
    running: Callable[[StoreLog], AbstractContextManager[Any]],
    roundings: int = 1,
) -> Iterator[str]:
    """Call again with other numbers in the same memory, once for each of `others`. Yield the first fault.

    Where the inputs are small and no gradient is wanted, further calls follow with the last numbers. `first` are the
    outputs of a call with the inputs' numbers. The inputs hold these numbers again afterwards.
    """
    earlier = [(list(first), [output.clone() for output in first])]
    before = {name: value.detach().clone() for name, value in inputs.items() if isinstance(value, Tensor)}
    try:
        for other in others:
            changed = other_numbers({**inputs, **before}, other)
            expected = Expected(reference, changed)
            given = {name: _overwritten(value, changed[name]) for name, value in inputs.items()}
            stores = StoreLog()
            with running(stores):
                outputs = Call(op, given, differentiable).outputs
            fault = _fault(outputs, earlier, expected, roundings, stores)
            if fault:
                yield fault
                return
            earlier.append((outputs, [output.clone() for output in outputs]))
        if not differentiable and sum(value.nbytes for value in before.values()) <= FEW_BYTES:
            for _ in range(CALLS_OF_FEW):
                stores = StoreLog()
                with running(stores):
                    outputs = Call(op, given, differentiable).outputs
                fault = _fault(outputs, earlier, expected, roundings, stores)
                if fault:
                    yield fault
                    return
                earlier.append((outputs, [output.clone() for output in outputs]))
    finally:
        for name, value in before.items():
            _overwritten(inputs[name], value)


def _fault(
    outputs: Sequence[Tensor],
    earlier: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]],
    expected: Expected,
    roundings: int,
    stores: StoreLog,
) -> str:
    """Return what is wrong with these outputs, or since then with those of earlier calls; nothing if all is right."""
    if [one.shape for one in outputs] != [one.shape for one in expected.exact.outputs]:
        return "a second call with other numbers returns other shapes than the first"
    for number, output in enumerate(outputs):
        comparison = expected.compare_output(number, output, roundings)
        if not comparison.passed:
            if any(identical(output, kept[number]) for _, kept in earlier):
                return "a second call with other numbers of the same shape returns the first result again"
            place = f"output {number}, " if len(outputs) > 1 else ""
            wrong = explained(comparison, output, expected.exact.outputs[number], stores)
            return f"a second call with other numbers of the same shape gives a wrong result: {place}{wrong}"
    taken = {_start(one) for old, _ in earlier for one in old if one.numel()}
    if taken & {_start(one) for one in outputs if one.numel()}:
        return "a second call returns the memory of the first result: a later call overwrites an earlier result"
    if not all(identical(*pair) for old, kept in earlier for pair in zip(old, kept, strict=True)):
        return "a second call changes the result of the first"
    return ""


def computed_without_kernels(
    op: Op, inputs: Inputs, expected: Expected, differentiable: Sequence[str], roundings: int = 1
) -> Iterator[str]:
    """Run the operator with its kernels switched off. Yield a sentence if its result is right all the same."""
    performer = _Idle()
    try:
        with interpreter.handing_over(performer):
            outputs = Call(op, inputs, differentiable).outputs
    except Exception:  # without the kernels' results the operator may fail in any way
        return
    checked = [number for number, one in enumerate(expected.exact.outputs) if one.numel()]
    if not checked or [one.shape for one in outputs] != [one.shape for one in expected.exact.outputs]:
        return
    if all(expected.compare_output(number, outputs[number], roundings).passed for number in checked):
        if performer.launches:
            yield "the result is right without the kernels that the operator launches: PyTorch computes it"
        else:
            yield NO_KERNEL


NO_KERNEL = (
    "the operator launches no kernel: PyTorch computes the result; for an operator without kernels of its own, set "
    "kernels=False in its SPEC"
)


class _Idle:
    """Launches nothing."""

    def __init__(self) -> None:
        self.launches = 0

    def launch(self, launched: interpreter.Launched) -> None:
        self.launches += 1

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        return candidates[0]


def _overwritten(value: Any, new: Any) -> Any:
    """Write new numbers into a tensor's memory, unseen by autograd; return a new tensor where elements overlap."""
    if not isinstance(value, Tensor):
        return value
    if torch._debug_has_internal_overlap(value) == 1:
        return new
    value.data.copy_(new)
    return value


def _start(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
