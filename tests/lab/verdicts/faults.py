"""Small faults of real kernels, each as a change of a reference: an eps left out, a term left out of a sum, tf32, …"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from subjects import Problem
from summation_orders import Summing, forward, in_half, pairwise, without_last
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tilesmith.spec import called


@dataclass(frozen=True)
class Fault:
    """A wrong function, and the mode under which it runs."""

    name: str
    function: Callable[..., Any]
    mode: Any = None


def faults(problem: Problem) -> Iterator[Fault]:
    """Yield the faults that this problem can have, and that its dtype can show."""
    reference = problem.spec.reference
    sums = _sums(problem)
    is_floating = any(one.is_floating_point() for one in problem.expected.exact.outputs)
    is_single = any(one.dtype == torch.float32 for one in problem.expected.plain.outputs)
    if problem.dtype == torch.float32:
        if "eps" in inspect.signature(reference).parameters:
            yield Fault("eps left out", _with(reference, eps=0.0))
        if 1 < sums.longest <= 4096:
            yield Fault("one term left out of each sum", reference, Summing(without_last))
        if sums.products:
            yield Fault("tf32 in products", reference, Summing(pairwise, _tf32))
            yield Fault("bf16 in products", reference, Summing(pairwise, lambda one: one.bfloat16().float()))
        if _is_inexact(problem):
            yield Fault("each step rounded to float16", reference, _Rounding(torch.float16))
        if is_single:
            yield Fault("scaled by 1.001", _changed(reference, lambda y: y * 1.001))
            yield Fault("one element off by 0.1 %", _changed(reference, _one_off))
        if sums.longest > 1:
            yield Fault("accumulator of half precision", reference, Summing(in_half))
        for name, mode in (("variance over n − 1", _Unbiased()), ("mask off by one", _MaskOffByOne())):
            problem.verdict(reference, mode)
            if mode.applied:
                yield Fault(name, reference, mode)
    elif sums.longest >= 64 and _sums_dominate(problem):
        yield Fault("accumulator of half precision", reference, Summing(in_half))
    yield Fault("last column left out", _changed(reference, _without_last_column))
    if is_floating:
        yield Fault("scaled by 1.05", _changed(reference, lambda y: y * 1.05))
    else:
        yield Fault("one integer off by one", _changed(reference, _one_more))


def _sums(problem: Problem) -> Summing:
    """Return a mode that has seen all sums of the problem."""
    mode = Summing(forward)
    problem.verdict(problem.spec.reference, mode)
    return mode


def _sums_dominate(problem: Problem) -> bool:
    """Return whether a half-precision accumulator is far from the result: three roundings of the result."""
    expected = problem.expected
    with Summing(in_half):
        made = called(problem.spec.reference, dict(expected.inputs))
    made = [made] if isinstance(made, Tensor) else made
    eps = torch.finfo(problem.dtype).eps
    return any(
        float((one.double() - exact).norm()) > 3 * eps * float(exact.norm())
        for one, exact in zip(made, expected.exact.outputs, strict=True)
        if one.is_floating_point()
    )


def _is_inexact(problem: Problem) -> bool:
    expected = problem.expected
    pairs = zip(expected.plain.outputs, expected.exact.outputs, strict=True)
    return any(bool((one.double() != exact).any()) for one, exact in pairs if one.is_floating_point())


def _with(reference: Callable[..., Any], **changed: Any) -> Callable[..., Any]:
    def wrong(**inputs: Any) -> Any:
        return called(reference, {**inputs, **changed})

    return wrong


def _changed(reference: Callable[..., Any], change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def wrong(**inputs: Any) -> Any:
        made = called(reference, inputs)
        several = [made] if isinstance(made, Tensor) else list(made)
        has_floating = any(one.is_floating_point() for one in several)
        several = [change(one) if one.is_floating_point() or not has_floating else one for one in several]
        return several[0] if isinstance(made, Tensor) else several

    return wrong


def _tf32(value: Tensor) -> Tensor:
    """Return the nearest values with ten bits of fraction."""
    bits = value.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _one_off(y: Tensor) -> Tensor:
    scale = torch.ones_like(y)
    if y.numel():
        scale[torch.unravel_index(y.detach().abs().argmax(), y.shape)] = 1.001
    return y * scale


def _one_more(y: Tensor) -> Tensor:
    more = torch.zeros_like(y)
    more.view(-1)[-1:] = 1
    return y + more


def _without_last_column(y: Tensor) -> Tensor:
    keep = torch.ones_like(y)
    keep[(..., -1) if y.ndim else ()] = 0
    return y * keep


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    """Round the result of every operation to a coarser dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if not func.is_view and isinstance(one, Tensor) and one.dtype == torch.float32:
                one.copy_(one.to(self._dtype))
        return made


class _Unbiased(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    """Divide sums of squares by n − 1 instead of n. `applied` says whether there was one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self.applied = False
        self._squares: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        made = func(*args, **(kwargs or {}))
        if name == "pow" or (name == "mul" and args[0] is args[1]):
            self._squares.append(made)
        elif name == "mean" and any(args[0] is one for one in self._squares):
            terms = args[0].numel() // made.numel()
            if terms > 1:
                self.applied = True
                return made * (terms / (terms - 1))
        elif name == "native_layer_norm" and args[0].numel() > made[1].numel():
            x, shape, weight, bias, eps = args
            dims = tuple(range(-len(shape), 0))
            mean = x.mean(dims, keepdim=True)
            rstd = torch.rsqrt(x.var(dims, unbiased=True, keepdim=True) + eps)
            self.applied = True
            y = (x - mean) * rstd
            y = y if weight is None else y * weight
            return (y if bias is None else y + bias), mean.to(made[1].dtype), rstd.to(made[2].dtype)
        return made


class _MaskOffByOne(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    """Move the edge of every mask by one place. `applied` says whether there was one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self.applied = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in ("tril", "triu"):
            self.applied = True
            return func(args[0], (args[1] if len(args) > 1 else 0) + 1)
        if name == "le" and all(isinstance(one, Tensor) and not one.is_floating_point() for one in args):
            self.applied = True
            return func(args[0], args[1] + 1)
        return func(*args, **(kwargs or {}))
