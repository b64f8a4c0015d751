"""Products inside other operators: by our kernels where single precision must be exact, else by the BLAS."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.matmul.forward import forward, forward_with_addend
from tilesmith.ops.runtime.precision import must_be_exact


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a·b + bias of matrices, or without a bias of batches of them.

    cuBLAS multiplies exact single precision without tensor cores. Of a weight's gradient over 16,384 pairs of residues
    it also has three times the error on an H200, 4.6e-7 in norm where ours is 1.5e-7.
    """
    if must_be_exact(a):
        return forward(a, b, bias, "", None, None, a.dtype, False)  # type: ignore[no-any-return]  # Kernels return Any
    if bias is not None:
        return torch.addmm(bias, a, b)
    return torch.mm(a, b) if a.ndim == 2 else torch.bmm(a, b)


def product_added(addend: Tensor | None, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """addend + a·b + bias of matrices; as `product` without an addend.

    The BLAS adds a vector or a matrix, and not both: there it is a pass more.
    """
    if addend is None:
        return product(a, b, bias)
    if must_be_exact(a):
        return forward_with_addend(a, b, bias, addend, False)  # type: ignore[no-any-return]  # as above
    return product(a, b, bias).add_(addend)


def rectified(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """relu(a·b + bias) of matrices."""
    if must_be_exact(a):
        return forward(a, b, bias, "relu", None, None, a.dtype, False)  # type: ignore[no-any-return]  # as above
    return torch._addmm_activation(bias, a, b)
