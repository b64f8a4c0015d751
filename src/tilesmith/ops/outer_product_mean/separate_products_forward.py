"""The forward in exact single precision, with outer products in memory: two GEMMs of large matrices, one pass between.

The kernel of `forward.py` keeps outer products on the chip. In exact single precision it must split the same operands
into bf16 parts again for every channel, in tiles of 64 × 64. `matmul.internal` splits each operand once and multiplies
in larger tiles. For that each outer product moves four times, `chunk` residues at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.matmul.internal.exact_or_blas import product
from tilesmith.ops.outer_product_mean.backward import chunks
from tilesmith.ops.outer_product_mean.forward import result_shape
from tilesmith.ops.runtime.composing.without_autocast import without_autocast
from tilesmith.ops.runtime.kernels import kernels


@kernels("outer_product_mean_separate_forward")
def forward(
    a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor | None, chunk: int | None, eps: float,
    tf32: bool,
) -> Tensor:  # fmt: skip
    return a.new_empty(result_shape(a.shape, weight.shape[0]))


@forward.composed
def compute_forward(
    a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor, bias: Tensor | None, chunk: int | None, eps: float,
    tf32: bool,
) -> Tensor:  # fmt: skip
    z = a.new_empty(result_shape(a.shape, weight.shape[0]))
    with without_autocast(a):
        for members, residues, alignments in chunks(a, b, mask, chunk, eps):
            sums = product(alignments.products(residues), weight.t(), None if bias is None else bias.contiguous())
            factors = alignments.factors[:, residues, :, None]
            of_chunk = z[members, residues]
            torch.mul(sums.view(of_chunk.shape), factors, out=of_chunk)
            if mask is not None:
                of_chunk.masked_fill_(factors == 0, 0.0)  # a pair that no sequence has, even of NaN
    return z
