"""The meaning of the operator in plain PyTorch, and PyTorch's fastest way to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.gelu import native as gelu

FLOAT8 = torch.float8_e4m3fn
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "silu": F.silu, "gelu": gelu}


def reference(
    a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str | None = None, scale_a: Tensor | None = None,
    scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    dtype = result_dtype(a, out_dtype)
    if a.dtype == FLOAT8 or a.dtype.itemsize < dtype.itemsize:
        a, b = a.to(torch.float32), b.to(torch.float32)
    y = torch.matmul(a, b)
    if scale_a is not None:
        y = y * scale_a.reshape(-1, 1)
    if scale_b is not None:
        y = y * scale_b.reshape(1, -1)
    if bias is not None:
        y = y + bias
    return (y if activation is None else ACTIVATIONS[activation](y)).to(dtype)


def result_dtype(a: Tensor, out_dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of the result: out_dtype, else bf16 for float8, else the dtype of the operands."""
    return out_dtype or (torch.bfloat16 if a.dtype == FLOAT8 else a.dtype)


def native(
    a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str | None = None, scale_a: Tensor | None = None,
    scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    dtype = result_dtype(a, out_dtype)
    if a.dtype == FLOAT8 and _scaled_product_takes(a, b, bias, scale_a, scale_b, dtype):
        y = torch._scaled_mm(a, b, _as_scale(a, scale_a, -1, 1), _as_scale(b, scale_b, 1, -1), bias, out_dtype=dtype)
    elif a.dtype != dtype:
        return reference(a, b, bias, activation, scale_a, scale_b, dtype)
    elif bias is not None and bias.dtype == a.dtype and a.ndim == b.ndim == 2:
        y = torch.addmm(bias, a, b)
    else:
        y = torch.matmul(a, b)
        y = y if bias is None else (y + bias).to(dtype)
    return y if activation is None else ACTIVATIONS[activation](y)


def _as_scale(operand: Tensor, scale: Tensor | None, rows: int, columns: int) -> Tensor:
    if scale is None:
        return torch.ones((), dtype=torch.float32, device=operand.device)
    return scale if scale.numel() == 1 else scale.reshape(rows, columns)


def _scaled_product_takes(
    a: Tensor, b: Tensor, bias: Tensor | None, scale_a: Tensor | None, scale_b: Tensor | None, dtype: torch.dtype
) -> bool:
    """Return whether PyTorch's float8 GEMM takes these: contiguous depth, sizes in units of 16, scales of one kind."""
    if not a.is_cuda or a.stride(1) != 1 or b.stride(0) != 1 or any(size % 16 for size in (*a.shape, *b.shape)):
        return False
    by_row = [scale is not None and scale.numel() > 1 for scale in (scale_a, scale_b)]
    return all(by_row) == any(by_row) and (dtype == torch.bfloat16 or not any(by_row)) and (
        bias is None or bias.dtype == dtype
    )  # fmt: skip
