"""Plain implementations of a reference: the same PyTorch code, with its sums added up in another order.

A mode replaces every sum, mean and matrix product by one in the given order, rounded after each addition as the
accumulator is. Composite operations, such as softmax and layer norm, are decomposed first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

from tilesmith.lab.rounding_model import layer_norm_in_steps

aten = torch.ops.aten
Terms = NDArray[Any]  # the last dimension is added up
Order = Callable[[Terms], Terms]


def forward(terms: Terms) -> Terms:
    return np.add.accumulate(terms, axis=-1)[..., -1]


def backward(terms: Terms) -> Terms:
    return forward(terms[..., ::-1])


def pairwise(terms: Terms) -> Terms:
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = _padded(terms, 2)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


def blocked(terms: Terms) -> Terms:
    """Add up 32 lanes side by side, then the lanes in pairs, as a warp does."""
    padded = _padded(terms, 32)
    return pairwise(np.add.accumulate(padded.reshape(*terms.shape[:-1], -1, 32), axis=-2)[..., -1, :])


def partly_in_double(terms: Terms) -> Terms:
    """Add up blocks of 16 without rounding, as a tensor core does, then the blocks in order."""
    blocks = _padded(terms, 16).reshape(*terms.shape[:-1], -1, 16).astype(np.float64).sum(-1)
    return forward(blocks.astype(terms.dtype))


ORDERS: dict[str, Order] = {
    "forward": forward, "backward": backward, "pairwise": pairwise, "blocked": blocked,
    "partly in double": partly_in_double,
}  # fmt: skip


def in_half(terms: Terms) -> Terms:
    """A fault: the accumulator has half precision."""
    return forward(terms.astype(np.float16)).astype(terms.dtype)


def without_last(terms: Terms) -> Terms:
    """A fault: one term is left out."""
    return pairwise(terms[..., :-1]) if terms.shape[-1] > 1 else terms[..., 0]


def _padded(terms: Terms, multiple: int) -> Terms:
    missing = -terms.shape[-1] % multiple
    return np.pad(terms, [(0, 0)] * (terms.ndim - 1) + [(0, missing)])


class Summing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    """Compute every sum in the given order. `longest` is the length of the longest sum so far."""

    def __init__(self, order: Order, operands: Callable[[Tensor], Tensor] = lambda value: value) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self._order = order
        self._operands = operands
        self.longest = 0
        self.products = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        floating = bool(args) and isinstance(args[0], Tensor) and args[0].is_floating_point()
        if name in ("sum", "mean") and floating and args[0].numel():
            return self._summed(name, *args, **kwargs)
        if name in ("mm", "bmm") and floating and args[0].numel() and args[1].numel():
            return self._product(args[0], args[1])
        if name in ("addmm", "baddbmm") and floating and args[1].numel() and args[2].numel() and not kwargs:
            with self:
                return args[0] + (args[1] @ args[2])
        is_half = floating and args[0].dtype.itemsize == 2
        if is_half and ("convolution" in name or ("pool2d" in name and "backward" in name)):
            # PyTorch's CPU kernels add up in half precision there, on some machines.
            wide = [one.float() if isinstance(one, Tensor) and one.is_floating_point() else one for one in args]
            made = func(*wide, **kwargs)
            several = made if isinstance(made, tuple) else (made,)
            narrow = tuple(None if one is None else one.to(args[0].dtype) for one in several)
            return narrow if isinstance(made, tuple) else narrow[0]
        if func in DECOMPOSED and floating:
            with self:
                return DECOMPOSED[func](*args, **kwargs)
        return func(*args, **kwargs)

    def _summed(
        self, name: str, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        axes = range(x.ndim) if dim is None or dim == [] else dim if isinstance(dim, list | tuple) else [dim]
        axes = sorted(axis % x.ndim for axis in axes) if x.ndim else []
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        shape = (
            [1 if axis in axes else x.shape[axis] for axis in range(x.ndim)] if keepdim else [x.shape[a] for a in kept]
        )
        terms = x.permute(*kept, *axes).reshape(*(x.shape[axis] for axis in kept), -1)
        total = self._added(terms)
        if name == "mean":
            total = total / terms.shape[-1]
        return total.to(dtype or x.dtype).reshape(shape)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        self.products += 1
        a, b = self._operands(a), self._operands(b)
        wide = [one if one.dtype == torch.float64 else one.float() for one in (a, b)]
        rows = max(1, 2**22 // max(1, wide[1].numel()))
        parts = [
            self._added(part.unsqueeze(-2) * wide[1].transpose(-1, -2).unsqueeze(-3))
            for part in wide[0].split(rows, dim=-2)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        ]
        return torch.cat(parts, dim=-2).to(a.dtype)

    def _added(self, terms: Tensor) -> Tensor:
        """Return the sums along the last dimension, in single precision at least."""
        self.longest = max(self.longest, terms.shape[-1])
        wide = terms if terms.dtype == torch.float64 else terms.float()
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.ascontiguousarray(self._order(wide.numpy())))


_COMPOSITES = ("_softmax", "_log_softmax", "native_layer_norm_backward", "var", "logsumexp")
DECOMPOSED = {
    func: decomposed
    for func, decomposed in core_aten_decompositions().items()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    if any(func.overloadpacket.__name__.startswith(name) for name in _COMPOSITES)
} | {aten.native_layer_norm.default: layer_norm_in_steps}  # PyTorch's core has no decomposition of it
