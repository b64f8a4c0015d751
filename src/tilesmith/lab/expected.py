"""What an operator must compute: outputs and gradients of its reference, exact and with modelled rounding errors.

Of in-place operators, whose names end in `_` as in PyTorch, the changed inputs are outputs too.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from tilesmith.lab.comparison import CANCELLING, Comparison, compare, root_mean_square, three_digits
from tilesmith.lab.rounding_model import Kinks, rounded
from tilesmith.spec import Inputs, Layout, Spec, called

# Draws of the rounding errors. The norm of many elements is nearly the same in every draw; that of a few is not.
DRAWS = 4
DRAWS_OF_FEW = 8
FEW = 256  # elements of the smallest output or gradient
# Where a few elements have nearly all of the error, such as those of one query with huge scores, draws differ as much.
DRAWS_OF_CONCENTRATED = 16
CONCENTRATED = 32  # elements; evenly spread errors of FEW elements count as 85
DRAWS_AT_KINKS = 8  # further ones, where rounding may move a value across a threshold
# Up to this size the draws are computed on a CPU, so that a GPU allows the same error to the last digit.
MOST_BYTES_ON_CPU = 1 << 20
# Millions of elements vary within one draw as much as a few do over several, so larger inputs get one draw and
# PyTorch's own result; on a GPU PyTorch's alone, since a draw of rms_norm takes 20 times the inputs' memory.
LARGE = 8 << 20
TERMS = 8.0  # times the typical number of an input: some are four times as large, and two of these roundings add up
LIKE = 1e-6  # relative to the norm: two results in float64 that differ by more are not the same computation
OVERLAPPING = "expanded"  # a layout whose elements share memory: PyTorch refuses to write to such a tensor
KEPT = 8  # expectations in memory: the layouts of a case have the same numbers, except for expanded tensors

Gradients = dict[str, Tensor | None]


class Call:
    """One call of a function, and the gradients of its outputs.

    `absent` are the numbers of the results that are None; outputs are the others.
    """

    def __init__(self, function: Callable[..., Any], inputs: Inputs, differentiable: Sequence[str]) -> None:
        self._leaves = {name: inputs[name].detach().requires_grad_() for name in differentiable}
        made = called(function, {**inputs, **self._leaves})
        made = [made] if isinstance(made, Tensor) else made
        results = made if isinstance(made, list | tuple) else [made]
        self.absent = [number for number, one in enumerate(results) if one is None]
        others = [one for one in results if not isinstance(one, Tensor) and (one is not None or made is None)]
        if others:
            raise TypeError(_no_tensors(made, others[0]))
        self.attached = [one for one in results if one is not None]
        self.outputs = [output.detach() for output in self.attached]

    def gradients(self, cotangents: Sequence[Tensor | None]) -> Gradients:
        followed = [
            (output, cotangent.to(output.dtype))
            for output, cotangent in zip(self.attached, cotangents, strict=True)
            if output.requires_grad and cotangent is not None
        ]
        if not followed or not self._leaves:
            return dict.fromkeys(self._leaves)
        outputs, weights = zip(*followed, strict=True)
        found = torch.autograd.grad(
            outputs, list(self._leaves.values()), weights, retain_graph=True, allow_unused=True
        )  # fmt: skip
        return dict(zip(self._leaves, found, strict=True))


def _no_tensors(made: Any, other: Any) -> str:
    """Return why these results cannot be compared; `other` is one that is not a tensor."""
    held = "" if made is other else f" with a {type(other).__name__}"
    text = f"returns a {type(made).__name__}{held}, not a tensor or a tuple of tensors"
    return f"{text}; the name of an operator that changes its inputs ends in _" if made is None else text


@dataclass(frozen=True)
class Values:
    """The outputs of one run of the reference, and the gradients by name."""

    outputs: list[Tensor]
    gradients: Gradients


class Expected:
    """The outputs and gradients of a reference.

    - `exact`: in float64.
    - `plain`: PyTorch's in the inputs' dtypes. Their values matter only where they are infinite or NaN.
    - `draws`: with modelled rounding errors, which say how exact a result in these dtypes can be.
    """

    def __init__(
        self,
        reference: Callable[..., Any],
        inputs: Inputs,
        differentiable: Sequence[str] = (),
        cotangent: Callable[[Tensor], Tensor] = torch.randn_like,
    ) -> None:
        """`cotangent(output)` makes the cotangent of an exact output."""
        self.inputs = copied(inputs, None)
        self.differentiable = differentiable
        exact = Call(reference, copied(inputs, torch.float64), differentiable)
        if _bytes(inputs) <= MOST_BYTES_ON_CPU:
            require_repeatable(exact.outputs, Call(reference, copied(inputs, torch.float64), ()).outputs)
        self.cotangents = [cotangent(output) if output.requires_grad else None for output in exact.attached]
        self.exact = Values(exact.outputs, exact.gradients(self.cotangents))
        plain = Call(reference, copied(inputs, None), differentiable)
        self.plain = Values(plain.outputs, plain.gradients(self.cotangents))
        self.absent = plain.absent
        self.draws = _draws(reference, self.inputs, differentiable, self.cotangents, self.exact)
        on_gpu = any(isinstance(one, Tensor) and one.is_cuda for one in tree_leaves(inputs))
        if on_gpu or len(self.draws) == 1:  # PyTorch's own error may loosen the limit, and never tightens it
            self.draws = [*self.draws, self.plain]
        sizes = [float(root_mean_square(one)) for one in self.cotangents if one is not None]
        self._gradient_terms = CANCELLING * three_digits(max(sizes, default=0.0))

    def compare_output(self, number: int, ours: Tensor, roundings: int = 1) -> Comparison:
        """Compare an output of the operator with the exact one."""
        exact, plain = self.exact.outputs[number], self.plain.outputs[number]
        roundings += self._unmodelled(exact)
        draws = [draw.outputs[number] for draw in self.draws]
        return compare(ours, exact, draws, roundings, size_of_terms(self.inputs, exact), plain)

    def compare_gradient(self, name: str, ours: Tensor, roundings: int = 1) -> Comparison:
        """Compare a gradient with the exact one; with zero where the reference has no gradient."""
        exact, plain = self.exact.gradients[name], self.plain.gradients[name]
        exact = torch.zeros_like(ours, dtype=torch.float64) if exact is None else exact
        roundings += self._unmodelled(exact)
        draws = [one for draw in self.draws if (one := draw.gradients[name]) is not None]
        return compare(ours, exact, draws, roundings, self._gradient_terms, plain)

    def _unmodelled(self, exact: Tensor) -> int:
        """Return one rounding more for few elements without a draw: there PyTorch's result may be exact by luck."""
        return int(all(one is self.plain for one in self.draws) and exact.numel() < FEW)


def size_of_terms(inputs: Inputs, exact: Tensor) -> float:
    """Return how large the terms of an output are that cancel to zero; 0.0 for other outputs.

    Nobody sees the terms. The input with the smallest numbers gives an estimate that allows little.
    """
    if root_mean_square(exact) > 1e-9:
        return 0.0
    tensors = [one.double() for one in tree_leaves(inputs) if isinstance(one, Tensor) and one.is_floating_point()]
    sizes = [float(root_mean_square(one.nan_to_num(0.0, 0.0, 0.0))) for one in tensors]
    return TERMS * three_digits(min((size for size in sizes if size), default=0.0))


def require_repeatable(outputs: Sequence[Tensor], again: Sequence[Tensor]) -> None:
    """Raise ValueError where two calls of a reference with the same inputs differ: it draws random numbers.

    The draws of rounding errors would differ as much, and allow any error.
    """
    for first, second in zip(outputs, again, strict=True):
        if first.is_complex() or (first.shape == second.shape and _are_like(first.double(), second.double())):
            continue
        raise ValueError(
            "another call with the same inputs gives other results; the reference must compute random numbers from a "
            "seed among its arguments, as the operator does"
        )


def _are_like(one: Tensor, other: Tensor) -> bool:
    finite = one.isfinite() & other.isfinite()
    one, other = one.where(finite, 0.0), other.where(finite, 0.0)
    return bool((one - other).norm() <= LIKE * one.norm())


def _bytes(inputs: Inputs) -> int:
    return sum(one.nbytes for one in tree_leaves(inputs) if isinstance(one, Tensor))


_kept: OrderedDict[bytes, list[Values]] = OrderedDict()


def _draws(
    reference: Callable[..., Any],
    inputs: Inputs,
    differentiable: Sequence[str],
    cotangents: Sequence[Tensor | None],
    exact: Values,
) -> list[Values]:
    """Return the reference's values with each draw of rounding errors; from memory for inputs of the same numbers."""
    tensors = [one for one in tree_leaves([inputs, list(cotangents)]) if isinstance(one, Tensor)]
    size = sum(one.nbytes for one in tensors)
    if size > LARGE and any(one.is_cuda for one in tensors):
        return []
    if size > LARGE:
        with rounded(0, Kinks()):
            call = Call(reference, copied(inputs, None), differentiable)
            return [Values(call.outputs, call.gradients(cotangents))]
    if size > MOST_BYTES_ON_CPU:
        return _drawn(reference, inputs, differentiable, cotangents, exact)
    key = _fingerprint(reference, inputs, differentiable, cotangents)
    if key not in _kept:
        device = next((one.device for one in tensors), torch.device("cpu"))
        on_cpu = {name: _moved(value, "cpu") for name, value in inputs.items()}
        its_cotangents = [_moved(one, "cpu") for one in cotangents]
        found = _drawn(reference, on_cpu, differentiable, its_cotangents, _values_on(exact, torch.device("cpu")))
        _kept[key] = [_values_on(one, device) for one in found]
    _kept.move_to_end(key)
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return _kept[key]


def _drawn(
    reference: Callable[..., Any],
    inputs: Inputs,
    differentiable: Sequence[str],
    cotangents: Sequence[Tensor | None],
    exact: Values,
) -> list[Values]:
    found: list[Values] = []
    kinks = Kinks()

    def draw() -> None:
        fresh = copied(inputs, None)
        with rounded(len(found), kinks):
            call = Call(reference, fresh, differentiable)
            found.append(Values(call.outputs, call.gradients(cotangents)))

    fewest = min((inputs[name].numel() for name in differentiable), default=FEW)
    while len(found) < (DRAWS_OF_FEW if fewest < FEW else DRAWS):
        draw()
        fewest = min([fewest, *(one.numel() for one in found[0].outputs if one.numel())])
    while len(found) < DRAWS_OF_CONCENTRATED and _is_concentrated(found[0], exact):
        draw()
    if kinks.turn():
        for _ in range(DRAWS_AT_KINKS):
            draw()
    return found


def _is_concentrated(draw: Values, exact: Values) -> bool:
    """Return whether a few elements of a large output or gradient have nearly all of its error."""
    pairs = list(zip(draw.outputs, exact.outputs, strict=True))
    pairs += [
        (one, other)
        for name, one in draw.gradients.items()
        if one is not None and (other := exact.gradients[name]) is not None
    ]
    for one, other in pairs:
        if one.is_floating_point() and one.numel() >= FEW:
            squares = (one.double() - other).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).square()
            largest = squares.max()
            if largest > 0 and (squares / largest).sum() ** 2 < CONCENTRATED * (squares / largest).square().sum():
                return True
    return False


def _fingerprint(reference: Any, inputs: Inputs, differentiable: Iterable[str], cotangents: Iterable[Any]) -> bytes:
    """Return a hash of everything that the draws depend on."""
    digest = hashlib.blake2b(f"{id(reference)} {list(differentiable)}".encode())
    for name, value in enumerate(tree_leaves([inputs, list(cotangents)])):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)} {value.device.type}".encode())
            plain = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.digest()


def _moved(value: Any, device: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), value)


def _values_on(values: Values, device: torch.device) -> Values:
    gradients = {name: _moved(one, device) for name, one in values.gradients.items()}
    return Values([_moved(one, device) for one in values.outputs], gradients)


def copied(inputs: Inputs, dtype: torch.dtype | None) -> Inputs:
    """Return copies of the inputs, also inside lists and dictionaries; floating-point tensors in `dtype` if given."""

    def copy(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().to(dtype if dtype and tensor.is_floating_point() else tensor.dtype)

    made: Inputs = tree_map_only(Tensor, copy, inputs)
    return made


def is_in_place(spec: Spec) -> bool:
    return spec.name.endswith("_")


def writable_layouts(spec: Spec) -> Sequence[Layout]:
    """Return the layouts of a spec; of an in-place operator, those whose elements do not overlap."""
    if not is_in_place(spec):
        return spec.layouts
    return [layout for layout in spec.layouts if layout.name != OVERLAPPING] or spec.layouts


def with_changed_inputs(spec: Spec) -> Spec:
    """Return the spec; of an in-place operator, one whose functions return the tensors among their arguments too."""
    if not is_in_place(spec):
        return spec
    return replace(spec, op=_returning_inputs(spec.op), reference=_returning_inputs(spec.reference))


def names_of_changed(spec: Spec, inputs: Inputs) -> list[str]:
    """Return the names of the arguments that `with_changed_inputs` adds to the results."""
    return [name for name, value in inputs.items() if isinstance(value, Tensor)] if is_in_place(spec) else []


@lru_cache(maxsize=64)  # draws of rounding errors are kept by the identity of the reference
def _returning_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        made = function(*arguments, **named)
        changed = [value.detach() for value in (*arguments, *named.values()) if isinstance(value, Tensor)]
        if made is None:
            return changed
        made = list(made.values()) if isinstance(made, dict) else made
        if isinstance(made, Tensor):
            return [made, *changed]
        return [*made, *changed] if isinstance(made, list | tuple) else made

    return call
