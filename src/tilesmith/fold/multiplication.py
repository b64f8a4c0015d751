"""triangle_multiplicative_update as in cuEquivariance, on `ops.triangle_multiply`."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tilesmith.fold.arguments import checked, require_shape
from tilesmith.ops.runtime.arguments import require_number
from tilesmith.ops.runtime.dispatch import state
from tilesmith.ops.runtime.kernels import is_transformed
from tilesmith.ops.triangle_multiply import triangle_multiply

NAME = "triangle_multiplicative_update"
LARGE = 2**28  # elements of x above which memory decides how many rows are computed at a time
SMALLEST_CHUNK = 32


class TriMulPrecision(enum.IntEnum):
    """The precision of float32 products."""

    NONE = -1  # as PyTorch's settings say
    DEFAULT = 0
    TF32 = 1
    TF32x3 = 2  # exact: to single precision
    IEEE = 3


@checked(NAME)
def triangle_multiplicative_update(
    x: Tensor,
    direction: str = "outgoing",
    mask: Tensor | None = None,
    norm_in_weight: Tensor | None = None,
    norm_in_bias: Tensor | None = None,
    p_in_weight: Tensor | None = None,
    p_in_bias: Tensor | None = None,
    g_in_weight: Tensor | None = None,
    g_in_bias: Tensor | None = None,
    norm_out_weight: Tensor | None = None,
    norm_out_bias: Tensor | None = None,
    p_out_weight: Tensor | None = None,
    p_out_bias: Tensor | None = None,
    g_out_weight: Tensor | None = None,
    g_out_bias: Tensor | None = None,
    eps: float = 1e-5,
    precision: TriMulPrecision | str | int | None = None,
) -> Tensor:
    """Return the triangle multiplicative update of pairs x, [..., N, N, C], without the residual:

    xn = norm_in(x); a, b = mask · σ(g_in(xn)) · p_in(xn); y = σ(g_out(xn)) · p_out(norm_out(Σ a·b)), where the sum is
    over a_ik · b_jk for `direction="outgoing"`, and over a_ki · b_kj for "incoming".

    - `mask`: [..., N, N], 0 or 1 in any dtype; broadcasts.
    - `p_in_weight`, `g_in_weight`: [2·D, C], the rows for a, then those for b; `p_out_weight`: [C, D];
      `g_out_weight`: [C, C]; the norms' weights and biases: [C] before and [D] after the product.
    - A norm without weight or bias has ones and zeros. A layer without a bias adds none. A layer without a weight gets
      a random one (LeCun's truncated normal), as in cuEquivariance.
    - `precision`: for float32. None and DEFAULT follow PyTorch's setting for tf32; TF32 allows it; TF32x3 and IEEE are
      exact to single precision. "bfloat16" rounds x and all parameters to bfloat16 first.

    Parameters are cast to the dtype of x. Where memory is short, some rows are computed at a time; the result is the
    same but for rounding.
    """
    _require_pairs(x)
    require_number(NAME, "eps", eps, at_least=0.0)
    if direction not in ("outgoing", "incoming"):
        raise ValueError(f"{NAME}: direction is {direction!r}, but must be one of outgoing, incoming")
    channels = x.shape[-1]
    hidden = _hidden_channels(channels, p_in_weight, g_in_weight, p_out_weight)
    _require_shapes(
        {"norm_in": (channels,), "p_in": (2 * hidden, channels), "g_in": (2 * hidden, channels),
         "norm_out": (hidden,), "p_out": (channels, hidden), "g_out": (channels, channels)},
        norm_in=(norm_in_weight, norm_in_bias), p_in=(p_in_weight, p_in_bias), g_in=(g_in_weight, g_in_bias),
        norm_out=(norm_out_weight, norm_out_bias), p_out=(p_out_weight, p_out_bias), g_out=(g_out_weight, g_out_bias),
    )  # fmt: skip
    mode = _precision(precision)
    if mode == "bfloat16":
        x = x.to(torch.bfloat16)
    given: dict[str, Any] = {
        "norm_weight": norm_in_weight if norm_in_weight is not None else x.new_ones(channels),
        "norm_bias": norm_in_bias if norm_in_bias is not None else x.new_zeros(channels),
        "projection_weight": _or_random(x, p_in_weight, 2 * hidden, channels), "projection_bias": p_in_bias,
        "gate_weight": _or_random(x, g_in_weight, 2 * hidden, channels), "gate_bias": g_in_bias,
        "output_norm_weight": norm_out_weight if norm_out_weight is not None else x.new_ones(hidden),
        "output_norm_bias": norm_out_bias if norm_out_bias is not None else x.new_zeros(hidden),
        "output_weight": _or_random(x, p_out_weight, channels, hidden), "output_bias": p_out_bias,
        "output_gate_weight": _or_random(x, g_out_weight, channels, channels), "output_gate_bias": g_out_bias,
    }  # fmt: skip
    parameters: dict[str, Any] = {name: None if one is None else one.to(x.dtype) for name, one in given.items()}
    pairs = x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])
    if mask is not None:
        mask = _broadcast(x, mask).reshape(pairs.shape[:3])
    with _multiplying(mode):
        update = triangle_multiply(
            pairs, direction=direction, mask=mask, **parameters, eps=eps, chunk=_rows_at_a_time(pairs, parameters)
        )
    return update.view(x.shape)


def _require_pairs(x: Tensor) -> None:
    if x.ndim < 3 or x.shape[-3] != x.shape[-2]:
        raise ValueError(f"{NAME}: x has shape {tuple(x.shape)}, but must be [..., N, N, C]")


def _require_shapes(wanted: dict[str, tuple[int, ...]], **layers: tuple[Tensor | None, Tensor | None]) -> None:
    """Check the weight and the bias of each layer that are given; a bias has an element for each row of its weight."""
    for name, both in layers.items():
        for kind, one, shape in zip(("weight", "bias"), both, (wanted[name], wanted[name][:1]), strict=True):
            require_shape(NAME, f"{name}_{kind}", one, shape)


def _hidden_channels(channels: int, *weights: Tensor | None) -> int:
    """Return D, from the first weight that is given."""
    p_in, g_in, p_out = weights
    for weight in (p_in, g_in):
        if weight is not None and weight.ndim:
            return weight.shape[0] // 2
    return channels if p_out is None or not p_out.ndim else p_out.shape[-1]


def _or_random(x: Tensor, weight: Tensor | None, rows: int, columns: int) -> Tensor:
    """Return the weight, or a new one whose elements have a variance of 1/columns."""
    if weight is not None:
        return weight
    deviation = columns**-0.5 / 0.87962566103423978  # of a normal distribution that is cut off at two deviations
    made = torch.empty(rows, columns, dtype=torch.float32, device=x.device)
    return torch.nn.init.trunc_normal_(made, std=deviation, a=-2 * deviation, b=2 * deviation).to(x.dtype)


def _broadcast(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mask in the shape of x without channels. On a CPU and under `debug`, require zeros and ones."""
    try:
        mask = mask.expand(x.shape[:-1])
    except RuntimeError:
        shape = tuple(x.shape[:-1])
        raise ValueError(f"{NAME}: mask has shape {tuple(mask.shape)}, but must broadcast to {shape}") from None
    # Reading the mask's values back would wait for a GPU, and a fake tensor or one of torch.func has none to read.
    may_look = (mask.device.type == "cpu" or state().debug) and not torch.compiler.is_compiling()
    may_look = may_look and mask.dtype != torch.bool and type(mask) is Tensor and not is_transformed()
    if may_look and bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError(f"{NAME}: mask has values other than 0 and 1")
    return mask


def _precision(given: TriMulPrecision | str | int | None) -> str | None:
    """Return "exact", "tf32", "bfloat16", or None for PyTorch's setting."""
    modes = {
        "none": None, "default": None, "tf32": "tf32", "tf32x3": "exact", "ieee": "exact",
        "bf16": "bfloat16", "bfloat16": "bfloat16",
    }  # fmt: skip
    if given is None:
        return None
    if isinstance(given, str):
        name = given.lower()
    elif isinstance(given, int) and given in tuple(TriMulPrecision):
        name = TriMulPrecision(given).name.lower()
    else:
        name = repr(given)
    if name not in modes:
        raise ValueError(f"{NAME}: precision is {given!r}, but must be None, a TriMulPrecision or one of {list(modes)}")
    return modes[name]


@contextmanager
def _multiplying(mode: str | None) -> Iterator[None]:
    """Multiply single precision exactly or as tf32, whatever PyTorch's setting; None keeps the setting."""
    if mode not in ("exact", "tf32"):
        yield
        return
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = "ieee" if mode == "exact" else "tf32"
    try:
        yield
    finally:
        products.fp32_precision = before


def _rows_at_a_time(pairs: Tensor, parameters: dict[str, Any]) -> int | None:
    """Return how many rows to compute at a time; None, for all, where memory has room for all.

    The update takes 5 times the memory of x, and 15 times with its backward. In chunks it takes 3 and 5 times.
    """
    if pairs.numel() < LARGE or not pairs.is_cuda or torch.compiler.is_compiling():
        return None
    tensors = [pairs, *(one for one in parameters.values() if one is not None)]
    trains = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    needed = (15 if trains else 5) * pairs.numel() * pairs.element_size()
    free, _ = torch.cuda.mem_get_info(pairs.device)
    free += torch.cuda.memory_reserved(pairs.device) - torch.cuda.memory_allocated(pairs.device)
    if needed <= free:
        return None
    return max(pairs.shape[1] // 16, SMALLEST_CHUNK)
