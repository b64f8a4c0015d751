"""Right results that evade the exercise's work, or hold only for one size.

Examples: a view in place of a new matrix, one program that does everything, a launch per row, one element at a time,
PyTorch for other sizes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.spec import Inputs, called
from tilesmith.toolchain.interpreter import Access, Launched, Observer, handing_over, interpreting
from tilesmith.toolchain.interpreter.running import Autotuner
from tilesmith.workshop.checking.traced_call import NO_ARITHMETIC, TracedCall, Tuned

_SAME_KEY = (
    "The autotuner's key {key} is the same for two sizes ({first}; {second}), but the pruning leaves other candidates "
    "for each. A GPU tunes once per key, so one of them would run with the other's candidate. Name every size in the "
    "key that decides which candidate is fastest."
)
_UNSEEN_SIZE = (
    "The autotuner's key {key} does not change with {size}. A GPU tunes once per key: where {size} is {times} times as "
    "large, your kernel would run with the candidate that was fastest for the small size. Name it in the key."
)
_FEW_PROGRAMS = 4  # of the model: with fewer, one program is no shame


class _Launches(Observer):
    """Counts launches, their programs, and the lanes of the widest access."""

    def __init__(self) -> None:
        self.launches = self.programs = self.lanes = 0

    def load(self, access: Access) -> None:
        self.lanes = max(self.lanes, access.mask.size)

    store = atomic = load

    def launch(self, kernel: Any, grid: tuple[int, int, int], arguments: Mapping[str, Any]) -> None:
        self.launches += 1
        self.programs += prod(grid)


class _Grids:
    """Takes over launches, counts them and their programs, and runs none."""

    def __init__(self) -> None:
        self.launches = self.programs = 0

    def launch(self, launched: Launched) -> None:
        self.launches += 1
        self.programs += prod(launched.grid)

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        return candidates[0]


class _Keys(_Grids):
    """Takes over launches, runs none, and keeps the keys that the tuners of a function see."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._tuners, self.keys = _tuners(function), list[list[Any]]()

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        self.keys += [[arguments.get(name) for name in one.keys] for one in self._tuners if one.fn is kernel]
        return super().configuration(candidates, kernel, arguments)


def size_without_key(
    function: Callable[..., Any],
    model: Callable[..., Any],
    inputs: Inputs,
    larger: Callable[[], Mapping[str, Inputs]],
    times: int,
) -> str | None:
    """Return the message for a size that the keys of the model's tuners contain, and those of the function do not.

    `larger` returns inputs in which the size of this name is so many times as large.
    """
    wanted, found = _keys(model, inputs), _keys(function, inputs)
    if not wanted or not found:
        return None
    for name, more in larger().items():
        if _keys(model, more) != wanted and _keys(function, more) == found:
            key = [list(one.keys) for one in _tuners(function)]
            return _UNSEEN_SIZE.format(key=key[0], size=name, times=times)
    return None


def _keys(function: Callable[..., Any], inputs: Inputs) -> list[list[Any]]:
    seen = _Keys(function)
    with suppress(Exception), handing_over(seen):
        called(function, inputs)
    return seen.keys


def _tuners(function: Callable[..., Any]) -> list[Autotuner]:
    return [one for one in getattr(function, "__globals__", {}).values() if isinstance(one, Autotuner)]


def shares_larger_work(function: Callable[..., Any], larger: Iterable[Inputs]) -> bool:
    """Return whether a launch has several programs on some of these inputs. No kernel runs."""
    for inputs in larger:
        grids = _Grids()
        with suppress(Exception), handing_over(grids):
            called(function, inputs)
        if grids.programs > grids.launches:
            return True
    return False


def key_too_coarse(function: Callable[..., Any], calls: Sequence[TracedCall]) -> str | None:
    """Return the message for an autotuner whose key is the same for sizes with different candidates."""
    for tuner in _tuners(function):
        seen: dict[Any, tuple[Tuned, list[str]]] = {}
        for call in calls:
            if call.tuned is None or call.tuned.kernel is not tuner.fn:
                continue
            key = (*(call.tuned.sizes.get(name) for name in tuner.keys), call.tuned.dtypes)
            candidates = [str(one) for one in call.candidates]
            first, others = seen.setdefault(key, (call.tuned, candidates))
            if candidates != others:
                return _SAME_KEY.format(key=list(tuner.keys), first=_sizes_of(first), second=_sizes_of(call.tuned))
    return None


def _sizes_of(tuned: Tuned) -> str:
    return ", ".join(f"{name} = {size}" for name, size in tuned.sizes.items() if not isinstance(size, bool))


def view_in_place_of_matrix(outputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> str | None:
    """Return the message for an output that only looks like the reference's: its memory has another order."""
    for made, reference in zip(outputs, wanted, strict=True):
        if reference.is_contiguous() and not made.is_contiguous():
            return (
                f"The numbers are right, but the result is a view with the strides {made.stride()}: in memory, the "
                f"elements are in another order. Return a new tensor with the strides {reference.stride()}."
            )
    return None


def too_little_parallel(
    calls: Sequence[TracedCall],
    model: Callable[..., Any],
    inputs: Sequence[Inputs],
    goals: Collection[str],
    shares: Callable[[], bool],
) -> str | None:
    """Return the message for a launch per row, or for one program that does everything.

    The model's launches on the same inputs are the measure. `goals` are the metrics that the exercise judges itself.
    `shares` tells whether larger inputs have several programs: then only the tried sizes fit into one.
    """
    launches, programs = [call.launches for call in calls], [call.programs for call in calls]
    most = max(range(len(calls)), key=lambda number: launches[number])
    if "launches" not in goals and launches[most] > 2:
        enough = _counted(model, inputs[most]).launches
        if launches[most] > 2 * enough:
            return (
                f"The result is right, but your function launches {launches[most]} kernels, where {enough} "
                f"{'is' if enough == 1 else 'are'} enough. A launch costs microseconds, and one after another leaves "
                "most of a GPU idle. Put the loop into the grid: a program for each turn."
            )
    if "programs" not in goals and launches == programs:  # every launch has one program, on all inputs
        largest = max(range(len(calls)), key=lambda number: _elements(inputs[number]))
        usual = _counted(model, inputs[largest]).programs
        if usual >= _FEW_PROGRAMS and usual > launches[largest] and not shares():
            return (
                "The result is right, but one program does all the work, at every size. A GPU has a hundred "
                f"multiprocessors and more, and each takes other programs. The model solution uses {usual} here. "
                "Divide the work by tl.program_id."
            )
    return None


def one_element_at_a_time(call: TracedCall, model: Callable[..., Any], inputs: Inputs) -> str | None:
    """Return the message for kernels that load and store single elements only, where the model moves blocks."""
    accesses = [one for kernel in call.kernels for one in kernel.accesses]
    if not accesses or any(prod(one.shape) > 1 for one in accesses) or _counted(model, inputs).lanes == 1:
        return None
    first = min(accesses, key=lambda one: one.line)
    return (
        f"The result is right, but every {first.kind} moves one element, from line {first.line} on. The warps of a "
        "program then do the same work 128 times over. Work on blocks: with offsets from tl.arange, one tl.load reads "
        "them all, and no loop over elements is needed."
    )


def torch_for_other_sizes(source: str, function: str, allow: Collection[str]) -> tuple[int, str] | None:
    """Return line and name of arithmetic by PyTorch in what the function can call; None where there is none."""
    for definition in _reachable(ast.parse(source), function):
        for node in ast.walk(definition):
            name = _torch_name(node.func) if isinstance(node, ast.Call) else None
            if name is not None and name not in NO_ARITHMETIC and name not in allow and _computes(name):
                return node.lineno, name  # type: ignore[attr-defined]  # a Call has a line
    return None


def _counted(model: Callable[..., Any], inputs: Inputs) -> _Launches:
    counted = _Launches()
    with interpreting(counted):
        called(model, inputs)
    return counted


def _elements(inputs: Inputs) -> int:
    return sum(one.numel() for one in inputs.values() if isinstance(one, Tensor))


def _reachable(tree: ast.Module, function: str) -> Iterator[ast.stmt]:
    """Yield the function and all functions and classes of the file that it names, directly or not; no kernels."""
    defined = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    waiting, seen = [function], {function}
    while waiting:
        found = defined.get(waiting.pop())
        if found is None or any("jit" in ast.unparse(one) for one in found.decorator_list):
            continue
        yield found
        names = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)} - seen
        seen |= names
        waiting += sorted(names)


def _torch_name(called_as: ast.expr) -> str | None:
    """Return the last part of torch.…, torch.nn.functional.… or F.…; None for other names."""
    parts = ast.unparse(called_as).split(".")
    if (parts[0] == "F" and len(parts) == 2) or (parts[0] == "torch" and parts[1:-1] in ([], ["nn", "functional"])):
        return parts[-1]
    return None


def _computes(name: str) -> bool:
    """Whether PyTorch's function of this name computes something from tensors."""
    found = getattr(torch, name, None) or getattr(F, name, None)
    return found is not None and not inspect.isclass(found) and (hasattr(Tensor, name) or hasattr(F, name))
