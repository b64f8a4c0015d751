"""Compare the results of each provider with PyTorch's in higher precision, by the rule of `check`.

A drawn case may hold billions of elements. So PyTorch's own operator in float32 (float64 for float32) is the reference,
not the spec's definition in float64, and tensors are compared in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.bench.measuring.timed_calls import COTANGENT, Function, InputSet, computed
from tilesmith.lab.bench.survey.subjects import Subject
from tilesmith.lab.check.context import exact_products
from tilesmith.lab.comparison import Comparison, compare, root_mean_square
from tilesmith.lab.expected import FEW
from tilesmith.spec import Inputs, is_differentiable

PIECE = 1 << 26  # elements; float64 copies of a piece take 0.5 GiB each
FARTHER = 4.0
"""Where a part stands for the whole, the whole may be this much further from PyTorch's result than the part."""


def inputs_of(subject: Subject, device: str, seed: int) -> InputSet:
    """Return new arguments of a case, and cotangents of its outputs where it has a gradient."""
    torch.manual_seed(seed)
    return with_cotangents(subject, subject.spec.inputs(subject.case, subject.dtype, device))


def with_cotangents(subject: Subject, arguments: Inputs, like: Sequence[Tensor] | None = None) -> InputSet:
    """Add random cotangents to arguments: of the shapes of `like`, or of PyTorch's outputs."""
    if not subject.spec.differentiable:
        return InputSet(arguments, [])
    if like is None:
        like = computed(subject.plain, subject.spec, "fwd")(**arguments)
    return InputSet(arguments, [torch.randn_like(one) for one in like])


class Checker:
    """The expected results of one case, from one set of inputs."""

    def __init__(self, subject: Subject, made: InputSet) -> None:
        self._subject = subject
        self._made = made
        spec = subject.spec
        self._mode = "both" if spec.differentiable else "fwd"
        with exact_products():
            self._plain = computed(subject.plain, spec, self._mode)(**made.values)
            self._exact = computed(subject.exact, spec, self._mode)(**self._precise())
        self._names = [*(COTANGENT.format(number) for number in range(len(made.cotangents)))] or ["output"]
        self._names += spec.leaves(made.arguments)[: len(self._exact) - len(self._names)]

    def _precise(self) -> Inputs:
        """Return the compared part of all inputs in higher precision."""
        dtype = torch.float64 if self._subject.dtype == torch.float32 else torch.float32

        def precise(name: str, value: Any) -> Any:
            return self._subject.part(name, value).to(dtype) if is_differentiable(value) else value

        return {name: precise(name, value) for name, value in self._made.values.items()}

    def wrong(self, function: Function) -> str | None:
        """Return what is wrong with a provider's outputs or gradients; None where they are right."""
        with exact_products():
            found = computed(function, self._subject.spec, self._mode)(**self._made.values)
        if len(found) != len(self._plain):
            return f"returns {len(found)} outputs and gradients, but PyTorch returns {len(self._plain)}"
        size = max((float(root_mean_square(one)) for one in self._made.cotangents), default=0.0)
        for name, ours, exact, plain in zip(self._names, found, self._exact, self._plain, strict=True):
            what = "forward" if name in ("output", COTANGENT.format(0)) else f"gradient {name}"
            if ours.shape != plain.shape or ours.dtype != plain.dtype:
                return f"{what} is {_described(ours)}, but must be {_described(plain)}"
            reason = self._difference(name, ours, exact, plain, 0.0 if what == "forward" else size)
            if reason:
                return f"{what}: {reason}"
        return None

    def _difference(self, name: str, ours: Tensor, exact: Tensor, plain: Tensor, cancelling: float) -> str | None:
        part = self._subject.part
        pieces = zip(*(_pieces(one) for one in (part(name, ours), exact, part(name, plain))), strict=True)
        allowed = 0.0
        for number, (one, wanted, torchs) in enumerate(pieces):
            # PyTorch's own error stands for the modelled ones, whose draws would take too long here. PyTorch's result
            # of few elements may be exact by luck: it allows one rounding more.
            roundings = self._subject.spec.roundings + int(exact.numel() < FEW)
            comparison = compare(one, wanted, [torchs], roundings, cancelling, plain=torchs)
            if not comparison.passed:
                return _explained(comparison, number, one, wanted)
            allowed = max(allowed, comparison.allowed)
        if part(name, ours).numel() == ours.numel():
            return None
        farther = _relative(ours, plain)
        if not farther <= FARTHER * allowed:
            return f"the whole differs from PyTorch's by {farther:.2g} of its norm, allowed {FARTHER * allowed:.2g}"
        return None


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    return torch.split(tensor.reshape(-1), PIECE)


def _relative(ours: Tensor, plain: Tensor) -> float:
    norm = float(plain.float().norm())
    return float((ours.float() - plain.float()).norm()) / (norm or 1.0)


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _explained(comparison: Comparison, piece: int, ours: Tensor, exact: Tensor) -> str:
    place = comparison.first[0] if comparison.first else 0
    return (
        f"element {piece * PIECE + place} is {ours[place].item():g}, but must be {exact[place].item():g}; "
        f"{comparison.wrong_elements} of {ours.numel()} elements are wrong "
        f"(error {comparison.error:.2g}, allowed {comparison.allowed:.2g})"
    )
