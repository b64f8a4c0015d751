"""In which precision a call computes: single precision exactly as bf16x3 or as tf32, and the dtype of autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.plan import Plan

_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


def _constant_to_tracers(function: Callable[[], bool]) -> Callable[[], bool]:
    """Mark a function as constant for torch.compile, which guards PyTorch's settings itself.

    `torch.compiler.assume_constant_result` does the same, but imports torch.compile: 1.8 s of 5 s that
    `import tilesmith.ops` took.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take any attribute
    return function


@_constant_to_tracers
def tf32_allowed() -> bool:
    """Whether PyTorch's settings allow tf32 in matrix products of single precision."""
    return _precision_for("matmul") == "tf32"


@_constant_to_tracers
def tf32_allowed_in_convolutions() -> bool:
    """Whether PyTorch's settings allow tf32 in convolutions: a separate setting, on by default."""
    return _precision_for("conv") == "tf32"


def _precision_for(products: str) -> str:
    # Equals torch.backends.cuda.matmul.fp32_precision in a quarter of the time; this runs at every call. The older
    # settings raise an error when read after the newer ones were set.
    return str(torch._C._get_fp32_precision_getter("cuda", products))


def product_precision(plan: Plan, dtype: torch.dtype, tf32: bool) -> str:
    """Return `input_precision` of `tl.dot`: tf32, or bf16x6, which is exact to single precision."""
    if dtype != torch.float32 or plan.device.type == "cpu":
        return "ieee"  # the interpreter is always exact
    if plan.architecture.target.startswith("hip"):
        return "ieee"  # AMD's matrix units multiply single precision exactly
    return "tf32" if tf32 else "bf16x6"


def must_be_exact(x: Tensor) -> bool:
    """Whether products of x must be exact to single precision: neither tf32 nor autocast applies."""
    if x.dtype != torch.float32 or tf32_allowed():
        return False
    return x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type)


def autocasted(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments as torch.autocast casts those of matrix products: floating-point tensors in its dtype.

    A call whose first tensor is float8 or double keeps its dtypes.
    """
    for first in arguments:  # every call of a matrix product comes here: no generator
        if isinstance(first, Tensor):
            break
    else:
        return arguments
    kind = "cuda" if first.is_cuda else first.device.type  # a device object takes longer
    if first.dtype not in _AUTOCAST or kind == "meta" or not torch.is_autocast_enabled(kind):
        return arguments
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        value.to(dtype) if isinstance(value, Tensor) and value.dtype in _AUTOCAST else value for value in arguments
    )


def autocast_rounds(x: object) -> bool:
    """Whether autocast is on with another dtype than x's. PyTorch then adds the residual, in x's dtype."""
    if not isinstance(x, Tensor) or x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return False
    return x.dtype != torch.get_autocast_dtype(x.device.type)
