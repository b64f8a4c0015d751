"""The backward: outer products and their gradients, for some residues at a time.

With o the sum of outer products and r = 1 / (eps + count) of a pair, and g = r · dz: do = g · W, da = Σ over j of
do · b, db = Σ over i of do · a, dW = Σ over pairs of g · o, dbias = Σ over pairs of g.

All but g are GEMMs. Those with W have a row for each pair, those with a and b a row for each residue and channel of a.
Between the two kinds one pass changes the layout: the only pass over something so large. Scaling dz by r, and not o,
saves a second such pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from tilesmith.ops.matmul.internal.exact_or_blas import product
from tilesmith.ops.outer_product_mean.backward_passes import scaled_gradient, transposed
from tilesmith.ops.outer_product_mean.inverse_counts import inverse_counts
from tilesmith.ops.runtime.composing.side_stream import SideStream
from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.kernels import kernels

MOST_IN_FLOAT16 = 2.0**12  # of one product; outer products add up a few of this size
CHUNK_BYTES = 64 << 20  # of outer products, unless `chunk` gives the number of residues: enough to fill a GPU


class Wanted(NamedTuple):
    """Which gradients a backward computes."""

    a_gradient: bool
    b_gradient: bool
    weight_gradient: bool
    bias_gradient: bool


@kernels("outer_product_mean_backward")
@flat_arguments
def backward(
    dz: Tensor, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    chunk: int | None, eps: float, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return da, db, dweight and dbias, empty where they are not wanted."""
    da, db, dweight, dbias = (
        a.new_empty(one.shape if one is not None and is_wanted else (0,))
        for one, is_wanted in zip((a, b, weight, bias), wanted, strict=True)
    )
    return da, db, dweight, dbias


@backward.composed
@flat_arguments
def compute_backward(
    dz: Tensor, a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    chunk: int | None, eps: float, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sums = Gradients(a, mask, weight, bias, wanted)
    with SideStream(a) as side_stream:
        for members, residues, alignments in chunks(a, b, mask, chunk, eps):
            sums.add(members, residues, alignments, dz[members, residues], side_stream)
    return sums.shaped()


def chunks(
    a: Tensor, b: Tensor, mask: Tensor | None, chunk: int | None, eps: float
) -> Iterator[tuple[slice, slice, Alignments]]:  # fmt: skip
    """Yield members of the batch, some of their residues, and the alignments of the members.

    `chunk` is the number of residues at a time. By default their outer products fill CHUNK_BYTES.
    """
    batch, _, residues, channels = a.shape
    of_residue = residues * channels**2 * a.itemsize
    step = min(chunk or max(CHUNK_BYTES // max(of_residue, 1), 1), max(residues, 1))
    # Several members of the batch at once where each is small. Chunks of several members would not be adjacent in dz.
    members = max(CHUNK_BYTES // max(residues * of_residue, 1), 1) if step == residues and chunk is None else 1
    for first in range(0, batch, members):
        some = slice(first, min(first + members, batch))
        alignments = Alignments(a[some], b[some], None if mask is None else mask[some], eps)
        for start in range(0, residues, step):
            yield some, slice(start, min(start + step, residues)), alignments


class Alignments:
    """Some members of the batch: masked a and b as [members, residues · channels, sequences], and the factor of each
    pair, [members, residues, residues]."""

    def __init__(self, a: Tensor, b: Tensor, mask: Tensor | None, eps: float) -> None:
        self.members, _, self.residues, self.channels = a.shape
        self.left, self.right = (
            (x if mask is None else x.masked_fill(~mask[..., None], 0.0)).permute(0, 2, 3, 1).flatten(1, 2)
            for x in (a, b)
        )
        self.factors = inverse_counts(a, mask, eps)
        self.divisor: Tensor | None = None
        if a.dtype == torch.float16:
            dtype = self.factors.dtype
            present = a.new_ones(a.shape[:3], dtype=dtype) if mask is None else mask.to(dtype)
            # A power of two near the root of each residue's count, so that the division is exact. Outer products of the
            # divided operands are about as large as those of single elements, and do not overflow.
            self.divisor = torch.exp2(torch.floor(torch.log2(present.sum(1).clamp(min=1)) / 2))

    @cached_property
    def scale(self) -> Tensor | None:
        """A power of two: float16 holds the outer products of operands divided by it. None for other dtypes."""
        if self.divisor is None or not self.left.numel():
            return None
        largest = [one.nan_to_num(0.0, 0.0, 0.0).abs().amax().float() for one in (self.left, self.right)]
        return torch.exp2(torch.ceil(torch.log2((largest[0] * largest[1] / MOST_IN_FLOAT16).clamp(min=1)) / 2))

    def products(self, chunk: slice) -> Tensor:
        """Return the outer products of pairs whose first residue is in the chunk, [pairs, channels · channels].

        They are divided by both residues' divisors and by the square of the scale, if there are any.
        """
        left, right, channels = self.left[:, self.rows(chunk)], self.right, self.channels
        if self.divisor is not None and self.scale is not None:
            divisor = (self.divisor * self.scale).repeat_interleave(channels, dim=1)[..., None].to(left.dtype)
            left, right = left / divisor[:, self.rows(chunk)], right / divisor
        products: Tensor = transposed(product(left, right.mT).view(-1, channels, self.residues, channels))
        return products.view(-1, channels * channels)

    def rows(self, chunk: slice) -> slice:
        return slice(chunk.start * self.channels, chunk.stop * self.channels)


class Gradients:
    """The gradients, added up chunk by chunk in single precision or better."""

    def __init__(
        self, a: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None, wanted: Wanted
    ) -> None:  # fmt: skip
        self.a, self.mask, self.weight = a, mask, weight
        self.dtype = torch.promote_types(a.dtype, torch.float32)
        self.wanted = wanted
        batch, sequences, residues, channels = a.shape
        laid_out = batch, residues * channels, sequences
        self.da = a.new_empty(laid_out if wanted.a_gradient else (0,))
        self.db = a.new_empty(laid_out if wanted.b_gradient else (0,), dtype=self.dtype)
        self.shapes = [
            one.shape if one is not None and is_wanted else (0,)
            for one, is_wanted in ((weight, wanted.weight_gradient), (bias, wanted.bias_gradient))
        ]
        self.dweight: Tensor | None = None
        self.dbias: Tensor | None = None

    def add(self, members: slice, chunk: slice, alignments: Alignments, dz: Tensor, side_stream: SideStream) -> None:
        """Add the part of one chunk of residues. dz is [members, chunk, residues, …]."""
        dz = dz.flatten(3).flatten(0, 1)
        factors = alignments.factors[:, chunk]
        scaled, total = scaled_gradient(dz, factors.flatten(0, 1))
        if self.wanted.bias_gradient:
            self.dbias = self._sum(self.dbias, total)
        if self.wanted.weight_gradient:
            balanced = scaled
            if alignments.divisor is not None:
                divided = factors * alignments.divisor[:, chunk, None] * alignments.divisor[:, None]
                balanced, _ = scaled_gradient(dz, divided.flatten(0, 1))
            self.dweight = side_stream(self._with_weight_gradient, self.dweight, balanced, alignments, chunk)
        if not (self.wanted.a_gradient or self.wanted.b_gradient):
            return
        pairs = scaled.flatten(0, 1)
        dproducts = pairs if self.weight is None else product(pairs, self.weight)
        residues, channels, rows = alignments.residues, alignments.channels, alignments.rows(chunk)
        of_operands = transposed(dproducts.view(-1, residues, channels, channels))
        matrices = of_operands.view(alignments.members, -1, residues * channels)
        if self.wanted.a_gradient:
            self.da[members, rows] = product(matrices, alignments.right)
        if self.wanted.b_gradient:
            of_chunk = product(matrices.mT, alignments.left[:, rows])
            self.db[members] = of_chunk if chunk.start == 0 else self.db[members] + of_chunk

    def _with_weight_gradient(
        self, before: Tensor | None, balanced: Tensor, alignments: Alignments, chunk: slice
    ) -> Tensor:  # fmt: skip
        more = product(balanced.flatten(0, 1).t(), alignments.products(chunk)).to(self.dtype)
        return self._sum(before, more if alignments.scale is None else more * alignments.scale**2)

    def _sum(self, before: Tensor | None, more: Tensor) -> Tensor:
        return more.to(self.dtype) if before is None else before + more

    def shaped(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients in the shapes and dtype of the arguments."""
        da, db = (self._of_operand(one.to(self.a.dtype)) for one in (self.da, self.db))
        dweight, dbias = (
            self.a.new_zeros(shape) if one is None else one.to(self.a.dtype)
            for one, shape in zip((self.dweight, self.dbias), self.shapes, strict=True)
        )
        return da, db, dweight, dbias

    def _of_operand(self, gradient: Tensor) -> Tensor:
        if gradient.ndim == 1:  # not wanted
            return gradient
        batch, sequences, residues, channels = self.a.shape
        of_operand = gradient.view(batch, residues, channels, sequences).permute(0, 3, 1, 2)
        return (of_operand if self.mask is None else of_operand.masked_fill(~self.mask[..., None], 0.0)).contiguous()
