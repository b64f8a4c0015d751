"""One function per operator that draws its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from drawn.values import DTYPES, Draw
from tilesmith.spec import Inputs

COLUMNS = (1, 2, 5, 16, 33, 130)
SMALL = (0, 1, 2, 3, 5, 9)
EPS = (1e-5, 1e-6, 1e-3, 0.1)


def _add(draw: Draw) -> Inputs:
    shape = draw.shape(0)
    other = [1 if draw.one_of((0, 0, 1)) else size for size in shape[draw.one_of(range(len(shape) + 1)) :]]
    y = draw.one_of((2, 0.1, -3.5)) if draw.one_of((0, 0, 0, 1)) else draw.tensor(*other, dtype=draw.one_of(DTYPES))
    return {"x": draw.tensor(*shape), "y": y}


def _silu(draw: Draw) -> Inputs:
    return {"x": draw.tensor(*draw.shape(0))}


def _gate(draw: Draw) -> Inputs:
    shape = draw.shape(0)
    return {"x": draw.tensor(*shape), "gate": draw.tensor(*shape)}


def _swiglu(draw: Draw) -> Inputs:
    shape = draw.shape()
    if draw.maybe():
        return {"gate": draw.tensor(*shape[:-1], 2 * shape[-1])}
    return {"gate": draw.tensor(*shape), "up": draw.tensor(*shape)}


def _with_approximation(draw: Draw, inputs: Inputs) -> Inputs:
    return {**inputs, "approximate": draw.one_of(("none", "tanh"))}


def _rms_norm(draw: Draw) -> Inputs:
    shape = [*draw.shape(0, 2), draw.one_of(COLUMNS)]
    weight = None
    if draw.one_of((0, 1, 1)):
        weight = draw.tensor(shape[-1]) if draw.one_of((0, 1, 1)) else draw.parameter(shape[-1]).float()
    return {"x": draw.tensor(*shape), "weight": weight, "eps": draw.one_of(EPS)}


def _add_rms_norm(draw: Draw) -> Inputs:
    inputs = _rms_norm(draw)
    return {"x": inputs["x"], "residual": draw.tensor(*inputs["x"].shape), **inputs}


def _layer_norm(draw: Draw) -> Inputs:
    if draw.route == "torch":  # PyTorch's own gives 1e7 for equal elements of 1e12, where 0 is right
        draw.ordinary()
    inputs = _rms_norm(draw)
    weight = inputs["weight"]
    bias = draw.parameter(*weight.shape).to(weight) if weight is not None and draw.maybe() else None
    return {**inputs, "bias": bias}


def _edge_norm(draw: Draw) -> Inputs:
    if draw.route == "torch":  # PyTorch's own norm of equal elements, as above
        draw.ordinary()
    batch, length, channels = draw.one_of(SMALL[:3]), draw.one_of(SMALL[:5]), draw.one_of(COLUMNS[:4])
    return {
        "x": draw.tensor(batch, length, length, channels), "norm_weight": draw.parameter(channels),
        "norm_bias": draw.parameter(channels) if draw.maybe() else None,
        "edge_weight": draw.parameter(draw.one_of((1, 2, 4)), channels), "transposed": draw.maybe(),
        "eps": draw.one_of(EPS),
    }  # fmt: skip


def _softmax(draw: Draw) -> Inputs:
    shape = draw.shape()
    return {"x": draw.tensor(*shape), "dim": draw.dim(len(shape))}


def _sum(draw: Draw) -> Inputs:
    shape = draw.shape(0, 4)
    dims = [dim for dim in range(len(shape)) if draw.maybe()]
    dim = draw.one_of((None, tuple(dims) or None, draw.dim(len(shape)) if shape else None))
    return {"x": draw.tensor(*shape), "dim": dim, "keepdim": draw.maybe()}


def _transpose(draw: Draw) -> Inputs:
    return {"x": draw.tensor(*draw.shape(2, 4))}


def _angles(draw: Draw, batch: int, positions: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    shape = (batch, positions, columns) if draw.maybe() else (positions, columns)
    angle = torch.rand(shape, generator=draw.random) * 6
    return [draw.laid_out(one.to(dtype)) for one in (angle.cos(), angle.sin())]


def _rope(draw: Draw) -> Inputs:
    batch, positions, head = draw.one_of(SMALL[:3]), draw.one_of(SMALL[:5]), draw.one_of((2, 4, 8))
    rotary = draw.one_of((None, head, 2))
    columns = head if rotary is None else draw.one_of((rotary, rotary // 2))
    cos, sin = _angles(draw, batch, positions, columns, draw.one_of((draw.dtype, torch.float32)))
    return {
        "q": draw.tensor(batch, draw.one_of((1, 2, 3)), positions, head),
        "k": draw.tensor(batch, draw.one_of((1, 2)), positions, head), "cos": cos, "sin": sin,
        "interleaved": draw.maybe(), "rotary_dim": rotary,
    }  # fmt: skip


def _rms_norm_rope(draw: Draw) -> Inputs:
    batch, positions, head = draw.one_of(SMALL[:3]), draw.one_of(SMALL[:5]), draw.one_of((2, 4, 10))
    cos, sin = _angles(draw, batch, positions, head, draw.one_of((draw.dtype, torch.float32)))
    return {
        "q": draw.tensor(batch, draw.one_of((1, 2, 3)), positions, head),
        "k": draw.tensor(batch, draw.one_of((1, 2)), positions, head), "q_weight": draw.parameter(head),
        "k_weight": draw.parameter(head), "cos": cos, "sin": sin, "eps": draw.one_of(EPS),
    }  # fmt: skip


def _loss_options(draw: Draw, rows: tuple[int, ...], classes: int) -> Inputs:
    ignore_index = draw.one_of((-100, -1, 0))
    target = torch.randint(classes, rows, generator=draw.random)
    target[torch.rand(rows, generator=draw.random) < 0.2] = ignore_index
    return {
        "target": draw.laid_out(target), "label_smoothing": draw.one_of((0.0, 0.1, 1.0)),
        "reduction": draw.one_of(("none", "sum", "mean")), "ignore_index": ignore_index,
    }  # fmt: skip


def _cross_entropy(draw: Draw) -> Inputs:
    rows, classes = tuple(draw.shape(1, 2)), draw.one_of((1, 2, 7, 33))
    return {"logits": draw.tensor(*rows, classes), **_loss_options(draw, rows, classes)}


def _linear_cross_entropy(draw: Draw) -> Inputs:
    rows, classes, features = tuple(draw.shape(1, 2)), draw.one_of((1, 2, 7, 33)), draw.one_of((1, 3, 8))
    return {
        "hidden": draw.tensor(*rows, features), "weight": draw.parameter(classes, features),
        "bias": draw.parameter(classes) if draw.maybe() else None, "softcap": draw.one_of((0.0, 0.0, 5.0)),
        "scale": draw.one_of((1.0, 0.3)), **_loss_options(draw, rows, classes),
    }  # fmt: skip


def _matmul(draw: Draw) -> Inputs:
    rows, inner, columns = (draw.one_of(SMALL) for _ in range(3))
    if draw.one_of((0, 0, 0, 0, 1)):
        return _matmul_of_float8(draw, rows, max(inner, 1), columns)
    activation = draw.one_of((None, None, "relu", "silu", "gelu"))
    # A result that rounds to zero has no gradient in a ReLU, and PyTorch rounds products before the activation.
    if activation == "relu" or (activation and draw.route == "torch"):
        draw.ordinary()
    batch = draw.shape(0, 2)
    a = draw.tensor(inner) if draw.one_of((0, 0, 0, 1)) else draw.tensor(*batch, rows, inner)
    others = batch[draw.one_of(range(len(batch) + 1)) :]
    b = draw.tensor(inner) if draw.one_of((0, 0, 0, 1)) else draw.tensor(*others, inner, columns)
    has_bias = b.ndim > 1 and draw.maybe()
    return {
        "a": a, "b": b, "bias": draw.tensor(columns) if has_bias else None,
        "activation": activation,
        "out_dtype": draw.one_of((None, None, torch.float32)) if draw.dtype != torch.float64 else None,
    }  # fmt: skip


def _matmul_of_float8(draw: Draw, rows: int, inner: int, columns: int) -> Inputs:
    def operand(*shape: int) -> Tensor:
        return draw.laid_out(torch.randn(shape, generator=draw.random)).to(torch.float8_e4m3fn)

    per_row = draw.maybe()
    draw.dtype = torch.bfloat16  # of the result
    return {
        "a": operand(rows, inner), "b": operand(columns, inner).t(),
        "scale_a": torch.rand((rows, 1) if per_row else (), generator=draw.random),
        "scale_b": torch.rand((1, columns) if per_row else (), generator=draw.random),
    }  # fmt: skip


def _transition(draw: Draw) -> Inputs:
    if draw.route == "torch":
        draw.ordinary()
    channels, hidden = draw.one_of((2, 5, 16)), draw.one_of((1, 4, 17))
    return {
        "x": draw.tensor(*draw.shape(0, 2), channels),
        "norm_weight": draw.parameter(channels), "norm_bias": draw.parameter(channels),
        "expand_weight": draw.parameter(hidden, channels), "expand_bias": draw.parameter(hidden),
        "contract_weight": draw.parameter(channels, hidden), "contract_bias": draw.parameter(channels),
        "eps": draw.one_of(EPS), "residual": draw.maybe(),
    }  # fmt: skip


def _image(draw: Draw, channels: int) -> Tensor:
    batch = [] if draw.one_of((0, 0, 1)) else [draw.one_of((0, 1, 2, 3))]
    return draw.tensor(*batch, channels, draw.one_of((3, 4, 5, 7)), draw.one_of((3, 4, 6)))


def _side(draw: Draw, *sizes: int) -> int | tuple[int, int]:
    return draw.one_of(sizes) if draw.maybe() else (draw.one_of(sizes), draw.one_of(sizes))


def _conv2d(draw: Draw) -> Inputs:
    groups, inputs, outputs = draw.one_of((1, 1, 2)), draw.one_of((1, 2, 3)), draw.one_of((1, 2, 4))
    return {
        "x": _image(draw, groups * inputs),
        "weight": draw.parameter(groups * outputs, inputs, draw.one_of((1, 2, 3)), draw.one_of((1, 2, 3))),
        "bias": draw.parameter(groups * outputs) if draw.maybe() else None,
        **draw.one_of(({"stride": _side(draw, 1, 2, 3), "padding": _side(draw, 0, 1, 2)},
                       {"padding": "same"}, {"padding": "valid"})),
        "dilation": draw.one_of((1, 1, (1, 1))), "groups": groups,
    }  # fmt: skip


def _pool(draw: Draw) -> Inputs:
    return {
        "x": _image(draw, draw.one_of((0, 1, 2, 3)) or 1), "kernel_size": _side(draw, 2, 3),
        "stride": draw.one_of((None, 1, 2, (3, 1))), "padding": _side(draw, 0, 1), "ceil_mode": draw.maybe(),
    }  # fmt: skip


def _max_pool2d(draw: Draw) -> Inputs:
    return _pool(draw) | {"dilation": draw.one_of((1, 1, (2, 1)))}


def _avg_pool2d(draw: Draw) -> Inputs:
    return _pool(draw) | {"count_include_pad": draw.maybe(), "divisor_override": draw.one_of((None, None, 3))}


CALLS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "add": _add,
    "silu": _silu,
    "gate": _gate,
    "swiglu": _swiglu,
    "gelu": lambda draw: _with_approximation(draw, _silu(draw)),
    "geglu": lambda draw: _with_approximation(draw, _swiglu(draw)),
    "rms_norm": _rms_norm,
    "rms_norm_relu": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "rms_norm_rope": _rms_norm_rope,
    "layer_norm": _layer_norm,
    "edge_norm": _edge_norm,
    "softmax": _softmax,
    "sum": _sum,
    "transpose": _transpose,
    "rope": _rope,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
    "matmul": _matmul,
    "transition": _transition,
    "conv2d": _conv2d,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
}
