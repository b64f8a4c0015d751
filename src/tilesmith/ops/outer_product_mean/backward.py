"""The gradients, from outer products and their gradients of some residues at a time.

With m the mean and r = 1 / (eps + count) of a pair: dm = dz · W, da = Σ over j of r · dm · b, db = Σ over i of
r · dm · a, dW = Σ over pairs of dz · m, dbias = Σ over pairs of r · dz.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.runtime.kernels import kernels

CHUNK_BYTES = 64 << 20  # for outer products, unless `chunk` says how many residues: large enough to fill a GPU


@kernels("outer_product_mean_backward")
def backward(
    dz: Tensor, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    chunk: int | None, eps: float, a_gradient: bool, b_gradient: bool, weight_gradient: bool, bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """da, db, dweight and dbias, empty where they are not wanted."""
    wanted = a_gradient, b_gradient, weight_gradient, bias_gradient
    da, db, dweight, dbias = (
        a.new_empty(one.shape if one is not None and is_wanted else (0,))
        for one, is_wanted in zip((a, b, weight, bias), wanted, strict=True)
    )
    return da, db, dweight, dbias


@backward.composed
def compute_backward(
    dz: Tensor, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    chunk: int | None, eps: float, *wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, _, residues, channels = a.shape
    step = chunk or max(CHUNK_BYTES // max(residues * channels**2 * a.itemsize, 1), 1)
    sums = Gradients(a, mask, weight, bias, wanted)
    for n in range(batch):
        of_one = OneAlignment(a[n], b[n], None if mask is None else mask[n], eps)
        for start in range(0, residues, step):
            sums.add(n, slice(start, min(start + step, residues)), of_one, dz[n, start : start + step])
    return sums.shaped()


class OneAlignment:
    """One member of the batch: its masked operands as [residues · channels, sequences], and its pairs' shares."""

    def __init__(self, a: Tensor, b: Tensor, mask: Tensor | None, eps: float) -> None:
        sequences, self.residues, self.channels = a.shape
        self.left, self.right = (
            (x if mask is None else x.masked_fill(~mask[..., None], 0.0)).permute(1, 2, 0).flatten(0, 1) for x in (a, b)
        )
        dtype = torch.promote_types(a.dtype, torch.float32)
        present = a.new_ones(sequences, self.residues, dtype=dtype) if mask is None else mask.to(dtype)
        count = present.t() @ present
        self.share = 1 / (eps + count)
        self.bias_share = self.share.masked_fill(count == 0, 0.0)
        # A power of two near the root of each residue's count. Outer products of operands divided by it are no larger
        # than about those of single elements, and so never too large for half precision; the division is exact.
        self.divisor = torch.exp2(torch.round(torch.log2(present.sum(0).clamp(min=1)) / 2))

    def means(self, chunk: slice) -> Tensor:
        """Of pairs with these residues first: [pairs, channels · channels]."""
        channels, divisor = self.channels, self.divisor.repeat_interleave(self.channels)[:, None]
        left = (self.left[self.rows(chunk)] / divisor[self.rows(chunk)]).to(self.left.dtype)
        products = left @ (self.right / divisor).to(left.dtype).t()
        shares = self.share[chunk] * self.divisor[chunk, None] * self.divisor
        of_pairs = products.view(-1, channels, self.residues, channels).transpose(1, 2)
        means = (of_pairs * shares[:, :, None, None]).to(left.dtype)
        return means.reshape(-1, channels * channels)

    def rows(self, chunk: slice) -> slice:
        return slice(chunk.start * self.channels, chunk.stop * self.channels)


class Gradients:
    """Put together chunk by chunk, in single precision or better where several chunks add up."""

    def __init__(
        self, a: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None, wanted: tuple[bool, ...]
    ) -> None:  # fmt: skip
        self.a, self.mask, self.weight = a, mask, weight
        dtype = torch.promote_types(a.dtype, torch.float32)
        self.to_a, self.to_b, self.to_weight, self.to_bias = wanted
        batch, sequences, residues, channels = a.shape
        laid_out = batch, residues * channels, sequences
        self.da = a.new_empty(laid_out if self.to_a else (0,))
        self.db = a.new_zeros(laid_out if self.to_b else (0,), dtype=dtype)
        self.dweight = a.new_zeros(weight.shape if weight is not None and self.to_weight else (0,), dtype=dtype)
        self.dbias = a.new_zeros(bias.shape if bias is not None and self.to_bias else (0,), dtype=dtype)

    def add(self, n: int, chunk: slice, one: OneAlignment, dz: Tensor) -> None:
        if self.to_bias:
            self.dbias += torch.einsum("ijz,ij->z", dz.to(self.dbias.dtype), one.bias_share[chunk])
        if self.to_weight:
            self.dweight += dz.reshape(-1, dz.shape[-1]).t() @ one.means(chunk)
        if not (self.to_a or self.to_b):
            return
        channels = one.channels
        shared = (dz.flatten(2) * one.share[chunk][..., None]).to(dz.dtype)
        dproducts = shared if self.weight is None else shared @ self.weight
        of_operands = dproducts.view(-1, one.residues, channels, channels).transpose(1, 2)
        matrix = of_operands.reshape(-1, one.residues * channels)
        if self.to_a:
            self.da[n, one.rows(chunk)] = matrix @ one.right
        if self.to_b:
            self.db[n] += matrix.t() @ one.left[one.rows(chunk)]

    def shaped(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As the arguments are."""
        dtype = self.a.dtype
        da, db = (self._of_operand(one.to(dtype)) for one in (self.da, self.db))
        return da, db, self.dweight.to(dtype), self.dbias.to(dtype)

    def _of_operand(self, gradient: Tensor) -> Tensor:
        if gradient.ndim == 1:  # not wanted
            return gradient
        batch, sequences, residues, channels = self.a.shape
        of_operand = gradient.view(batch, residues, channels, sequences).permute(0, 3, 1, 2)
        return (of_operand if self.mask is None else of_operand.masked_fill(~self.mask[..., None], 0.0)).contiguous()
