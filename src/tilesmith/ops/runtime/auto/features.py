"""A call as the few numbers that decide who is faster: sizes, bytes, flops, waves, alignment.

Sizes are logarithms to base 2, because twice the size matters as much at every size. A fitted model clamps each number
to the range of the surveys, so a call outside that range is treated as the nearest one inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Arguments = Mapping[str, Any]  # of an operator, by name
Features = dict[str, float]
VECTOR_BYTES = 16  # of one load; an address or a row that does not divide by it needs narrower loads
TILE = 128


def features(operator: str, arguments: Arguments, multiprocessors: int) -> Features | None:
    """Return the features of a call; None where surveys have no calls of its kind, such as attention with a bias."""
    describe = _FEATURES.get(operator)
    if describe is None or any(not _is_usual(operator, name, value) for name, value in arguments.items()):
        return None
    tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
    if any(0 in tensor.shape for tensor in tensors):
        return None
    return describe(arguments, multiprocessors)


def dtype_class(arguments: Arguments) -> str | None:
    """Return which models serve the call: "half", "single", or None."""
    first = next((value for value in arguments.values() if isinstance(value, Tensor)), None)
    if first is None:
        return None
    return {torch.bfloat16: "half", torch.float16: "half", torch.float32: "single"}.get(first.dtype)


# Values that surveyed calls have. Other values change the work, or PyTorch's way to do it.
_USUAL: dict[str, dict[str, tuple[Any, ...]]] = {
    "matmul": {"bias": (None,), "activation": (None,), "scale_a": (None,), "scale_b": (None,), "out_dtype": (None,)},
    "attention": {
        "bias": (None,), "mask": (None,), "window": (None,), "softcap": (0, 0.0, None), "dropout": (0, 0.0),
    },
    "softmax": {"dim": (-1,)},
    "sum": {"dim": (-1,), "keepdim": (False,)},
    "conv2d": {"dilation": (1, (1, 1)), "groups": (1,)},
    "cross_entropy": {"weight": (None,), "label_smoothing": (0, 0.0), "reduction": ("mean",)},
    "triangle_attention": {"gate": (None,)},
    "msa_row_attention": {"gate": (None,)},
    "msa_column_attention": {"gate": (None,)},
    "triangle_multiply": {"residual": (False,)},
    "transition": {"residual": (False,)},
}  # fmt: skip


def _is_usual(operator: str, name: str, value: Any) -> bool:
    usual = _USUAL.get(operator, {}).get(name)
    if usual is None or isinstance(value, Tensor):
        return usual is None
    if operator in ("softmax", "sum") and name == "dim" and isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return value in usual


def _log(size: float) -> float:
    return math.log2(max(size, 1e-9))


def _waves(tiles: int, multiprocessors: int) -> Features:
    """Return the number of waves, and the share of the last one that is empty."""
    waves = tiles / multiprocessors
    return {"waves": _log(waves), "tail": math.ceil(waves) - waves if waves < 16 else 0.0}


def _rounding_up(size: int) -> float:
    """Return how much larger the next power of two is."""
    return _log(1 << max(size - 1, 0).bit_length()) - _log(size)


def _is_unaligned(elements: int, itemsize: int) -> float:
    return float(elements * itemsize % VECTOR_BYTES != 0)


def _rows(arguments: Arguments, multiprocessors: int) -> Features:
    x = next(value for value in arguments.values() if isinstance(value, Tensor))
    columns = x.shape[-1] if x.ndim else 1
    rows, itemsize = x.numel() // columns, x.dtype.itemsize
    size = _log(x.numel() * itemsize)
    return {
        "bytes": size,
        "rows": _log(rows),
        "columns": _log(columns),
        "small": max(0.0, 22 - size),  # below 4 MiB a call is launch-bound
        "few_rows": max(0.0, _log(multiprocessors) - _log(rows)),
        "wide": max(0.0, _log(columns * itemsize) - 15),  # rows above 32 KiB do not fit in the registers of a program
        "narrow": max(0.0, 8 - _log(columns)),
        "rounding_up": _rounding_up(columns),
        "unaligned": _is_unaligned(columns, itemsize),
        "strided": float(not x.is_contiguous()),
    }


def _matmul(arguments: Arguments, multiprocessors: int) -> Features | None:
    a, b = arguments["a"], arguments["b"]
    if a.ndim != 2 or b.ndim != 2:
        return None
    (m, k), n, itemsize = a.shape, b.shape[1], a.dtype.itemsize
    transposed = [float(one.stride(1) != 1 and one.stride(0) == 1) for one in (a, b)]
    rows_of = {"a": m if transposed[0] else k, "b": k if transposed[1] else n, "y": n}  # that follow each other
    unaligned = {f"unaligned_{name}": _is_unaligned(elements, itemsize) for name, elements in rows_of.items()}
    return {
        "m": _log(m),
        "n": _log(n),
        "k": _log(k),
        "flops": _log(m) + _log(n) + _log(k),
        "bytes": _log((m * k + k * n + m * n) * itemsize),
        "depth": _log(k) - (_log(m) + _log(n)) / 2,  # deep products have few tiles: split-K
        "few_rows": max(0.0, 6 - _log(m)),
        "few_columns": max(0.0, 7 - _log(n)),
        **_waves(math.ceil(m / TILE) * math.ceil(n / TILE), multiprocessors),
        "transposed_a": transposed[0],
        "transposed_b": transposed[1],
        **unaligned,
        "unaligned": max(unaligned.values()),
        "narrow": min(_log(m), _log(n)),
    }


def _attention(arguments: Arguments, multiprocessors: int) -> Features:
    q, k = arguments["q"], arguments["k"]
    batch, heads, queries, head_size = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    return {
        "heads": _log(batch * heads),
        "queries": _log(queries),
        "keys": _log(keys),
        "flops": _log(batch * heads * queries * keys * head_size),
        "head_size": float(head_size) / 64,
        "head_rounding_up": _rounding_up(head_size),
        "large_head": max(0.0, head_size / 128 - 1),
        "group": _log(group),
        "causal": float(bool(arguments["causal"])),
        "one_query": float(queries == 1),
        "short": max(0.0, 10 - _log(keys)),
        **_waves(batch * heads * math.ceil(queries / TILE), multiprocessors),
        "partial_tile": float(keys % TILE != 0),
    }


def _grid_attention(arguments: Arguments, multiprocessors: int) -> Features:
    batch, rows, columns, heads, head_size = arguments["q"].shape
    itemsize = arguments["q"].dtype.itemsize
    return {
        "rows": _log(batch * rows),
        "columns": _log(columns),
        "heads": _log(heads),
        "head_size": _log(head_size),
        "bytes": _log(arguments["q"].numel() * itemsize),
        **_waves(batch * rows * heads * math.ceil(columns / TILE), multiprocessors),
        "unaligned": _is_unaligned(columns, itemsize),
        "starting": float(bool(arguments.get("starting", True))),
    }


def _triangle_multiply(arguments: Arguments, multiprocessors: int) -> Features:
    z = arguments["z"]
    batch, residues, _, channels = z.shape
    return {
        "batch": _log(batch),
        "residues": _log(residues),
        "channels": _log(channels),
        "bytes": _log(z.numel() * z.dtype.itemsize),
        **_waves(batch * channels * math.ceil(residues / TILE) ** 2, multiprocessors),
        "unaligned": _is_unaligned(residues, z.dtype.itemsize),
        "incoming": float(arguments["direction"] == "incoming"),
    }


def _conv2d(arguments: Arguments, multiprocessors: int) -> Features | None:
    x, weight = arguments["x"], arguments["weight"]
    if x.ndim != 4:
        return None
    stride = arguments["stride"]
    stride = stride if isinstance(stride, int) else max(stride)
    (filters, channels), taps = weight.shape[:2], weight.shape[2] * weight.shape[3]
    pixels = x.shape[0] * x.shape[2] * x.shape[3] / stride**2
    block, itemsize = TILE // 2, x.dtype.itemsize
    intensity = _log(2 * pixels * math.prod(weight.shape) / (x.numel() + pixels * filters))
    channels_last = float(x.stride(1) == 1)
    return {
        "pixels": _log(pixels),
        "channels": _log(channels),
        "filters": _log(filters),
        "window": _log(taps),
        "stride": _log(stride),
        "flops": _log(pixels * math.prod(weight.shape)),
        "intensity": intensity,
        "channels_last": channels_last,
        "copied": (1 - channels_last) * max(0.0, 9 - intensity),  # copies to channels last weigh where flops are few
        "unaligned": max(_is_unaligned(channels, itemsize), _is_unaligned(filters, itemsize)),
        "narrow": float(channels % 16 != 0 or filters % 16 != 0),
        "few": float(min(channels, filters) < 16),
        "few_channels": max(0.0, 6 - _log(channels)),
        "few_filters": max(0.0, 6 - _log(filters)),
        # With a stride the Hopper kernels take whole blocks of channels only; others load by pointers.
        "strided": float(stride > 1 and (channels % block != 0 or filters % block != 0)),
        "rounding_up": _log(math.ceil(filters / block) * block) - _log(filters),
        "channels_rounding_up": _log(math.ceil(channels / block) * block) - _log(channels),
        **_waves(math.ceil(pixels / TILE) * math.ceil(filters / TILE), multiprocessors),
    }


def _other(arguments: Arguments, multiprocessors: int) -> Features:
    tensors: Sequence[Tensor] = [value for value in arguments.values() if isinstance(value, Tensor)]
    first, largest = tensors[0], max(tensors, key=lambda tensor: tensor.numel())
    return {
        "bytes": _log(sum(tensor.nbytes for tensor in tensors)),
        "first": _log(first.numel()),
        "largest": _log(largest.numel()),
        "columns": _log(first.shape[-1] if first.ndim else 1),
        "leading": _log(first.shape[0] if first.ndim else 1),
        "unaligned": _is_unaligned(first.shape[-1] if first.ndim else 1, first.dtype.itemsize),
        "strided": float(not first.is_contiguous()),
    }


_FEATURES: dict[str, Callable[[Arguments, int], Features | None]] = {
    **dict.fromkeys(
        ("add", "silu", "gate", "swiglu", "rms_norm", "add_rms_norm", "rms_norm_relu", "layer_norm", "sum", "softmax",
         "cross_entropy", "transpose"),
        _rows,
    ),
    "matmul": _matmul,
    "attention": _attention,
    **dict.fromkeys(("triangle_attention", "msa_row_attention", "msa_column_attention"), _grid_attention),
    "triangle_multiply": _triangle_multiply,
    "conv2d": _conv2d,
    **dict.fromkeys(
        ("rope", "linear_cross_entropy", "max_pool2d", "avg_pool2d", "outer_product_mean", "edge_norm", "transition"),
        _other,
    ),
}  # fmt: skip
