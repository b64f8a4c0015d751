"""Operators written anew in float64. They share no code with the operators' own references."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor

Pair = tuple[int, int]
_units_of_mean = 0.0


@contextmanager
def rounded_mean(unit: float) -> Iterator[None]:
    """Let the mean of a layer norm have this relative error; the mean of equal elements stays exact.

    Kernels subtract a mean that is rounded to their precision. The reference subtracts the first element before, so
    that its own mean of nearly equal elements is far more precise.
    """
    global _units_of_mean
    _units_of_mean = unit
    try:
        yield
    finally:
        _units_of_mean = 0.0


def sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    normed = x / ((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt()
    return normed if weight is None else normed * weight


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    apart = x - x[..., :1].detach()  # equal elements are their mean, without rounding
    differ = apart.detach().any(-1, keepdim=True)
    apart = apart - apart.sum(-1, keepdim=True) / x.shape[-1]
    if _units_of_mean:
        apart = apart - _units_of_mean * differ * x.detach().abs().sum(-1, keepdim=True) / x.shape[-1]
    normed = apart / ((apart * apart).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt()
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    powers = torch.exp(x - x.amax(dim, keepdim=True).detach()) if x.shape[dim] else torch.exp(x)
    return powers / powers.sum(dim, keepdim=True)


def product_of(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product as a sum of element by element products."""
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    made = (x[..., None, :] * weight).sum(-1)
    return made if bias is None else made + bias


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution's Φ(x), or its approximation by a cubic polynomial in tanh."""
    if approximate == "tanh":
        return x * (1 + torch.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x))) / 2
    made: Tensor = x * torch.special.ndtr(x)
    return made


def _gated(activation: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor | None) -> Tensor:
    if up is None:
        half = gate.shape[-1] // 2
        gate, up = gate[..., :half], gate[..., half:]
    return activation(gate) * up


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def _cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:  # fmt: skip
    losses, counted = [], 0
    for row, wanted in zip(logits.reshape(-1, logits.shape[-1]), target.flatten().tolist(), strict=True):
        if wanted == ignore_index:
            losses.append((row * 0).nan_to_num(0.0).sum().detach())
            continue
        counted += 1
        largest = row.max().detach()
        logarithms = row - largest - (row - largest).exp().sum().log()
        loss = -logarithms[wanted] if not label_smoothing else (
            -(1 - label_smoothing) * logarithms[wanted] - label_smoothing * logarithms.sum() / len(row))  # fmt: skip
        losses.append(loss)
    each = torch.stack(losses) if losses else logits.sum(-1).flatten() * 0
    if reduction == "none":
        return each.view(target.shape)
    return each.sum() / counted if reduction == "mean" else each.sum()


def _linear_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, softcap: float = 0.0,
    scale: float = 1.0, **options: Any,
) -> Tensor:  # fmt: skip
    logits = linear(hidden, weight, bias) * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    return _cross_entropy(logits, target, **options)


def _matmul(
    a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str | None = None, scale_a: Tensor | None = None,
    scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    rows, columns = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
    made = product_of(rows, columns)
    made = made if scale_a is None else made * scale_a
    made = made if scale_b is None else made * scale_b
    made = made if bias is None else made + bias
    if activation:
        activations: dict[str, Callable[[Tensor], Tensor]] = {
            "relu": lambda x: torch.relu(x), "silu": lambda x: x * sigmoid(x), "gelu": gelu,
        }  # fmt: skip
        made = activations[activation](made)
    made = made.squeeze(-1) if b.ndim == 1 else made
    return made.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else made


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, rotary_dim: int | None = None) -> Tensor:
    """Rotate one pair after another, as complex numbers are multiplied."""
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    cos, sin = (one[:, None] if one.ndim == 3 else one for one in (cos, sin))
    columns = list(x.unbind(-1))
    for pair in range(width // 2):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + width // 2)
        a, b = columns[first], columns[second]
        halves = cos.shape[-1] == width // 2 and width // 2 != width
        of_first, of_second = (pair, pair) if halves else (first, second)
        columns[first] = a * cos[..., of_first] - b * sin[..., of_first]
        columns[second] = b * cos[..., of_second] + a * sin[..., of_second]
    return torch.stack(columns, -1)


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return rotated(q, cos, sin, **options), rotated(k, cos, sin, **options)


def _rms_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return rotated(rms_norm(q, q_weight, eps), cos, sin), rotated(rms_norm(k, k_weight, eps), cos, sin)


def _edge_norm(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, edge_weight: Tensor, transposed: bool, eps: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    normed = layer_norm(x, norm_weight, norm_bias, eps)
    biases = linear(normed, edge_weight).movedim(-1, 1)
    return normed, biases.transpose(-1, -2) if transposed else biases


def _transition(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, expand_weight: Tensor, expand_bias: Tensor,
    contract_weight: Tensor, contract_bias: Tensor, eps: float, residual: bool,
) -> Tensor:  # fmt: skip
    hidden = torch.relu(linear(layer_norm(x, norm_weight, norm_bias, eps), expand_weight, expand_bias))
    made = linear(hidden, contract_weight, contract_bias)
    return x + made if residual else made


def _both(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value


def _padded(x: Tensor, before: Pair, after: Pair, value: float) -> Tensor:
    shape = *x.shape[:2], before[0] + x.shape[2] + after[0], before[1] + x.shape[3] + after[1]
    made = x.new_full(shape, value)
    made[:, :, before[0] : before[0] + x.shape[2], before[1] : before[1] + x.shape[3]] = x
    return made


def _as_batch(x: Tensor) -> Tensor:
    return x if x.ndim == 4 else x[None]


def _conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Pair = 1, padding: int | Pair | str = 0,
    dilation: int | Pair = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    stride, dilation = _both(stride), _both(dilation)
    reach = [dilation[side] * (weight.shape[2 + side] - 1) for side in (0, 1)]
    if isinstance(padding, str):
        before = (0, 0) if padding == "valid" else (reach[0] // 2, reach[1] // 2)
        after = (0, 0) if padding == "valid" else (reach[0] - before[0], reach[1] - before[1])
    else:
        before = after = _both(padding)
    images = _padded(_as_batch(x), before, after, 0.0)
    height, width = ((images.shape[2 + side] - reach[side] - 1) // stride[side] + 1 for side in (0, 1))
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    made = []
    for group in range(groups):
        total = images.new_zeros(images.shape[0], outputs, height, width)
        channels = images[:, group * inputs : (group + 1) * inputs]
        for down, right in product(range(weight.shape[2]), range(weight.shape[3])):
            seen = _seen_by(channels, (down * dilation[0], right * dilation[1]), stride, (height, width))
            taps = weight[group * outputs : (group + 1) * outputs, :, down, right]
            total = total + (seen[:, None] * taps[None, :, :, None, None]).sum(2)
        made.append(total)
    result = torch.cat(made, 1)
    result = result if bias is None else result + bias[:, None, None]
    return result if x.ndim == 4 else result[0]


def _seen_by(images: Tensor, start: Pair, stride: Pair, sizes: Pair) -> Tensor:
    """Return the element at one place of every window."""
    down = slice(start[0], start[0] + (sizes[0] - 1) * stride[0] + 1, stride[0])
    right = slice(start[1], start[1] + (sizes[1] - 1) * stride[1] + 1, stride[1])
    return images[:, :, down, right]


def _windows(length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Return how many windows PyTorch places along one side."""
    number = (length + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1) * ceil_mode) // stride + 1
    return number - 1 if ceil_mode and (number - 1) * stride >= length + padding else number


def _pooling(
    x: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, value: float
) -> Iterator[Tensor]:  # fmt: skip
    """Yield one place of all windows after another."""
    kernel, padding, dilation = _both(kernel_size), _both(padding), _both(dilation)
    stride = kernel if stride is None else _both(stride)
    sizes = tuple(_windows(x.shape[2 + side], kernel[side], stride[side], padding[side], dilation[side], ceil_mode)
                  for side in (0, 1))  # fmt: skip
    reach = tuple(dilation[side] * (kernel[side] - 1) + stride[side] for side in (0, 1))
    images = _padded(x, padding, (padding[0] + reach[0], padding[1] + reach[1]), value)
    places = product(range(kernel[0]), range(kernel[1]))
    for down, right in places:
        yield _seen_by(images, (down * dilation[0], right * dilation[1]), stride, (sizes[0], sizes[1]))


def _max_pool2d(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:  # fmt: skip
    windows = kernel_size, stride, padding, dilation, ceil_mode
    places = _pooling(_as_batch(x), *windows, float("-inf"))
    exist = _pooling(torch.ones_like(_as_batch(x)), *windows, 0.0)
    best = next(places)
    found = next(exist) > 0  # an element of the image: of −∞ and −∞ around the image, the image's is the largest
    for place, exists in zip(places, exist, strict=True):
        better = (place > best) | place.isnan() | ((exists > 0) & ~found)
        best, found = torch.where(better, place, best), found | (exists > 0)
    return best if x.ndim == 4 else best[0]


def _avg_pool2d(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    def total(images: Tensor, pad: Any) -> Tensor:
        summed = torch.zeros((), dtype=images.dtype)
        for place in _pooling(images, kernel_size, stride, pad, 1, ceil_mode, 0.0):
            summed = summed + place
        return summed

    images = _as_batch(x)
    if divisor_override is not None:
        made = total(images, padding) / divisor_override
    else:
        ones = torch.ones_like(images[:1, :1]) if images.shape[0] and images.shape[1] else images.new_ones(
            1, 1, *images.shape[2:])  # fmt: skip
        if count_include_pad:
            ones = _padded(ones, _both(padding), _both(padding), 1.0)
            counts = _counted(ones, images, kernel_size, stride, padding, ceil_mode)
        else:
            counts = total(ones, padding)
        made = total(images, padding) / counts
    return made if x.ndim == 4 else made[0]


def _counted(ones: Tensor, x: Tensor, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> Tensor:
    """Return how many places of each window lie in the padded image."""
    kernel, padding = _both(kernel_size), _both(padding)
    stride = kernel if stride is None else _both(stride)
    height, width = (_windows(x.shape[2 + side], kernel[side], stride[side], padding[side], 1, ceil_mode)
                     for side in (0, 1))  # fmt: skip
    counts = [[ones[0, 0, i * stride[0] : i * stride[0] + kernel[0], j * stride[1] : j * stride[1] + kernel[1]].sum()
               for j in range(width)] for i in range(height)]  # fmt: skip
    return torch.tensor(counts, dtype=ones.dtype).view(1, 1, height, width)


def _sum(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    for one in sorted((one % max(x.ndim, 1) for one in dims), reverse=True):
        x = torch.stack(x.unbind(one)).sum(0) if x.shape[one] else x.new_zeros(x.shape).sum(one)
        x = x.unsqueeze(one) if keepdim else x
    return x


REFERENCES: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "silu": lambda x: x * sigmoid(x),
    "gate": lambda x, gate: x * sigmoid(gate),
    "gelu": gelu,
    "geglu": lambda gate, up=None, approximate="none": _gated(lambda x: gelu(x, approximate), gate, up),
    "swiglu": lambda gate, up=None: _gated(lambda x: x * sigmoid(x), gate, up),
    "rms_norm": rms_norm,
    "rms_norm_relu": lambda x, weight, eps: torch.relu(rms_norm(x, weight, eps)),
    "add_rms_norm": _add_rms_norm,
    "rms_norm_rope": _rms_norm_rope,
    "layer_norm": layer_norm,
    "edge_norm": _edge_norm,
    "softmax": softmax,
    "sum": _sum,
    "transpose": lambda x: x.transpose(-1, -2),
    "rope": _rope,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
    "matmul": _matmul,
    "transition": _transition,
    "conv2d": _conv2d,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
}
