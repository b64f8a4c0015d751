"""Products inside other operators: by our kernels where float32 must be exact, else by the BLAS."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.matmul.forward import forward, forward_with_addend
from tilesmith.ops.runtime.precision import must_be_exact


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a·b + bias of matrices; without a bias also of batches.

    cuBLAS multiplies exact float32 without tensor cores. For a weight's gradient over 16,384 pairs of residues its
    error is three times ours on an H200: 4.6e-7 and 1.5e-7 in norm.
    """
    if must_be_exact(a):
        return forward(a, b, bias, "", None, None, a.dtype, False)  # type: ignore[no-any-return]  # Kernels return Any
    if bias is not None:
        return torch.addmm(bias, a, b)
    return torch.mm(a, b) if a.ndim == 2 else torch.bmm(a, b)


def product_with_addend(addend: Tensor | None, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return addend + a·b + bias of matrices; `product` where the addend is None.

    The BLAS adds either a vector or a matrix: both cost one pass more.
    """
    if addend is None:
        return product(a, b, bias)
    if must_be_exact(a):
        return forward_with_addend(a, b, bias, addend, False)  # type: ignore[no-any-return]  # as above
    return product(a, b, bias).add_(addend)


def product_with_relu(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """Return relu(a·b + bias) of matrices."""
    if must_be_exact(a):
        return forward(a, b, bias, "relu", None, None, a.dtype, False)  # type: ignore[no-any-return]  # as above
    return torch._addmm_activation(bias, a, b)
