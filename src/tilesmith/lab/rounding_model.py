"""Model the rounding errors of a computation in any dtype, the same on every machine.

`rounded(draw)` runs PyTorch code with modelled rounding: each operation computes in float64 and then rounds its result
to its dtype, up or down at random. The random numbers come from a fixed table, so a draw is a property of the code and
of its inputs. Neither the CPU's vector width nor the order in which a library sums matters.

Operations that add up terms also have errors of their own: in whatever order a kernel adds n terms in single precision,
the error grows like √n at most. The model varies the operands and the result of such an operation by that much.
Functions that every library approximates in its own way, such as exp and erf, vary by four roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Bits of the fraction that float64 has and the dtype has not.
LOST_BITS = {torch.float32: 29, torch.float16: 42, torch.bfloat16: 45, torch.float64: 0}
# A sum of n terms, one after another, is off by 0.17 · √n roundings: n roundings of partial sums, which grow evenly.
# The uniform noise has this standard deviation at 0.3; more would hide a term left out of a sum.
OF_SUMS = 0.3
TABLE_LENGTH = 1_048_573  # a prime, so that the noise of one row is not that of another
# Correctly rounded by every machine: their result needs rounding, and their operands no noise.
ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "neg", "reciprocal", "addcmul", "addcdiv", "lerp", "sqrt"})
# Libraries approximate these functions. CUDA documents errors of up to two roundings; exp2(x · log₂e) has more, and
# PyTorch's erf on CPUs is off by 4e-7. Near zero, the errors of ODD ones are relative to 1: 2σ(2x) − 1 is tanh x.
ODD = frozenset({"erf", "tanh", "sin"})
APPROXIMATED = ODD | {
    "erfc", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cos", "tan", "sigmoid", "softplus", "silu",
    "gelu", "mish", "log_sigmoid_forward", "logsumexp", "_softmax", "_log_softmax",
}  # fmt: skip
OF_APPROXIMATED = 4.0  # roundings

PRODUCTS = frozenset({"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "addbmm"})
SUMS = PRODUCTS | {
    "sum",
    "nansum",
    "mean",
    "cumsum",
    "convolution",
    "avg_pool2d",
    "index_add",
    "scatter_add",
    "index_put",
}
# With ones as operands, these count the terms of each element: as many as indices name the element.
SCATTERED = frozenset({
    "index_add", "scatter_add", "index_put", "embedding_dense_backward", "max_pool2d_with_indices_backward",
})  # fmt: skip
CERTAIN = 4.0  # standard deviations: rounding does not move a value further
# Operations that decide by a threshold, which is their second argument, or zero.
DECISIONS = frozenset({"relu", "leaky_relu", "gt", "ge", "lt", "le", "clamp_min"})


class Kinks:
    """Decisions that rounding may turn: on which side of a threshold a computed value lies.

    The first draws note the values before each decision. Where these values differ so much that the threshold is among
    them, `turn` makes later draws decide at random. A gradient behind a ReLU needs that: one value that is almost zero
    changes it more than all roundings.
    """

    def __init__(self) -> None:
        self._noted: list[list[Tensor]] = []
        self._turning = False
        self._place = 0

    def next_draw(self) -> None:
        self._place = 0

    def turn(self) -> bool:
        """From now on, turn uncertain decisions. Return whether there are any."""
        self._turning = True
        return any(bool(self._uncertain(number).any()) for number in range(len(self._noted)))

    def at(self, value: Tensor, threshold: float, random: np.random.Generator) -> Tensor:
        """Return the value before a decision, on a random side of the threshold where the side is uncertain."""
        place, self._place = self._place, self._place + 1
        if not self._turning:
            if place == len(self._noted):
                self._noted.append([])
            self._noted[place].append(value.detach().double() - threshold)
            return value
        if place >= len(self._noted):
            return value
        uncertain = self._uncertain(place)
        if uncertain.shape != value.shape or not uncertain.any():
            return value
        side = torch.from_numpy(random.choice([-1.0, 1.0], size=tuple(value.shape))).to(value.device, value.dtype)
        return torch.where(uncertain, threshold + side * torch.finfo(value.dtype).tiny, value)

    def _uncertain(self, place: int) -> Tensor:
        several = self._noted[place]
        if len({one.shape for one in several}) != 1:
            return torch.zeros(0, dtype=torch.bool)
        values = torch.stack(several)
        return values.mean(0).abs() < CERTAIN * values.std(0, unbiased=False)


@contextmanager
def rounded(draw: int, kinks: Kinks | None = None) -> Iterator[None]:
    """Run PyTorch operations with the modelled rounding errors of this draw."""
    if kinks is not None:
        kinks.next_draw()
    with _Rounding(draw, kinks):
        yield


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    """Recompute each operation in float64, and round its result at random."""

    def __init__(self, draw: int, kinks: Kinks | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self._kinks = kinks
        self._places = np.random.Generator(np.random.Philox(draw))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and importing torch.compile's back end takes two seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        operands = [one for one in _leaves((args, tuple(kwargs.values()))) if _is_modelled(one)]
        if not operands:
            return func(*args, **kwargs)
        if self._kinks is not None and func.overloadpacket.__name__ in DECISIONS and args[0] is operands[0]:
            threshold = args[1] if len(args) > 1 and func.overloadpacket.__name__ != "leaky_relu" else 0.0
            if isinstance(threshold, int | float):
                args = (self._kinks.at(args[0], float(threshold), self._places), *args[1:])
        if func in COMPOSITES:
            return self._in_steps(func, args, kwargs)
        call = _Operation(func, _mapped(_doubled, args), {name: _mapped(_doubled, one) for name, one in kwargs.items()})
        nominal = func(*args, **kwargs)  # its dtypes, strides and aliases; its values only where they are not modelled
        outputs = [one for one in _leaves(nominal) if _is_modelled(one)]
        if outputs:
            self._round(call, operands, outputs)
        return nominal

    def _in_steps(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the results of a composite operation, with the rounding errors of its steps."""
        nominal = func(*args, **kwargs)
        with self:
            made = COMPOSITES[func](*args, **kwargs)
        for one, output in zip(made, _leaves(nominal), strict=True):
            output.copy_(one)
        return nominal

    def _round(self, call: _Operation, operands: list[Tensor], outputs: list[Tensor]) -> None:
        """Replace the outputs' values by rounded ones."""
        exact = call.results(_kept if call.func._schema.is_mutable else None)
        if exact is None:
            return
        pairs = list(zip(exact, outputs, strict=True))
        # A sum may need no rounding at its end, and yet in its middle.
        if call.is_linear or not all(_is_on_grid(one, output.dtype) for one, output in pairs):
            if call.name not in ARITHMETIC:
                exact = self._with_errors_inside(call, exact, operands, outputs)
            exact = [self._rounded(one, output.dtype) for one, output in zip(exact, outputs, strict=True)]
        for one, output in zip(exact, outputs, strict=True):
            output.copy_(one)

    def _with_errors_inside(
        self, call: _Operation, exact: list[Tensor], operands: list[Tensor], outputs: list[Tensor]
    ) -> list[Tensor]:
        """Return the results with the errors of an operation's own steps, which are in single precision or better."""
        precision = torch.finfo(torch.float64 if outputs[0].dtype == torch.float64 else torch.float32).eps
        of_sum = OF_SUMS * precision * _terms(call, operands, outputs) ** 0.5
        of_operands = of_sum if call.is_linear else precision / 2
        varied = call.results(lambda value: self._varied(value, of_operands))
        if varied is None:
            return exact
        finite = [other.where(other.isfinite(), one) for one, other in zip(exact, varied, strict=True)]
        if call.name in APPROXIMATED:
            of_sum = max(of_sum, OF_APPROXIMATED * precision)
        if call.name in ODD:
            return [one + of_sum * self._noise(one, _uniform_table(one.device.type)) for one in finite]
        return [self._varied(one, of_sum) for one in finite]

    def _varied(self, value: Any, size: float) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float64:
            return value
        return value * (1 + size * self._noise(value, _uniform_table(value.device.type)))

    def _rounded(self, exact: Tensor, dtype: torch.dtype) -> Tensor:
        """Round up or down, with the probability that makes the mean exact. Infinities and NaN stay."""
        bits = exact.contiguous().view(torch.int64)
        noise = self._noise(bits, _bits_table(exact.device.type))
        if dtype == torch.float64:
            moved = (bits + (noise & 1)).view(torch.float64)
            return moved.where(exact.isfinite(), exact)
        lost = (1 << LOST_BITS[dtype]) - 1
        return ((bits + (noise & lost)) & ~lost).view(torch.float64)

    def _noise(self, like: Tensor, table: Tensor) -> Tensor:
        """Return a stretch of the table, from a place of this operation."""
        start, count = int(self._places.integers(TABLE_LENGTH)), like.numel()
        stretch = table[start : start + count]
        if len(stretch) < count:
            stretch = torch.cat([stretch, table.repeat(-(-(count - len(stretch)) // len(table)))])[:count]
        return stretch.view(like.shape)


def layer_norm_in_steps(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what native_layer_norm returns, by sums and arithmetic in single precision or better."""
    dims = tuple(range(-len(shape), 0))
    wide = _single(x)
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    inverse_deviation = ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()
    y = centred * inverse_deviation
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(x.dtype), mean, inverse_deviation


def silu_backward_in_steps(gradient: Tensor, x: Tensor) -> tuple[Tensor]:
    wide, sigmoid = _single(x), _single(x).sigmoid()
    return ((_single(gradient) * (sigmoid * (1 + wide * (1 - sigmoid)))).to(x.dtype),)


def gelu_backward_in_steps(gradient: Tensor, x: Tensor, *, approximate: str = "none") -> tuple[Tensor]:
    wide = _single(x)
    if approximate == "tanh":
        scale = (2 / math.pi) ** 0.5
        tanh = (scale * (wide + 0.044715 * (wide * wide * wide))).tanh()
        slope = 0.5 * (1 + tanh) + 0.5 * wide * (1 - tanh * tanh) * (scale * (1 + 3 * 0.044715 * (wide * wide)))
    else:
        slope = 0.5 * (1 + (wide * 0.5**0.5).erf()) + wide * ((-0.5 * (wide * wide)).exp() * (2 * math.pi) ** -0.5)
    return ((_single(gradient) * slope).to(x.dtype),)


def mish_backward_in_steps(gradient: Tensor, x: Tensor) -> tuple[Tensor]:
    wide = _single(x)
    tanh = torch.nn.functional.softplus(wide).tanh()
    return ((_single(gradient) * (tanh + wide * wide.sigmoid() * (1 - tanh * tanh))).to(x.dtype),)


def _single(value: Tensor) -> Tensor:
    """Return the value in single precision or better."""
    return value if value.dtype == torch.float64 else value.float()


# Operations that lose digits in their own steps, which varied operands do not show: the rounding of a mean far from
# zero moves all of a row, and 1 − σ(x) of a large x has few digits.
COMPOSITES: dict[Any, Callable[..., tuple[Tensor, ...]]] = {
    torch.ops.aten.native_layer_norm.default: layer_norm_in_steps,
    torch.ops.aten.silu_backward.default: silu_backward_in_steps,
    torch.ops.aten.gelu_backward.default: gelu_backward_in_steps,
    torch.ops.aten.mish_backward.default: mish_backward_in_steps,
}


def _is_modelled(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in LOST_BITS


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value in LOST_BITS:
        return torch.float64
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(torch.float64, copy=True)
    return value


@dataclass(frozen=True)
class _Operation:
    """One operation of PyTorch with its arguments in float64."""

    func: Any
    args: Any
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        name: str = self.func.overloadpacket.__name__
        return name.rstrip("_")

    @property
    def is_linear(self) -> bool:
        """Return whether the result adds up its operands, so that each may be off by the error of the sum."""
        return self.name in SUMS or "backward" in self.name

    def results(self, change: Callable[[Any], Any] | None) -> list[Tensor] | None:
        """Return the floating-point results for changed arguments; None where PyTorch has no such operation."""
        args, kwargs = self.args, self.kwargs
        if change is not None:
            args = _mapped(change, args)
            kwargs = {name: _mapped(change, one) for name, one in kwargs.items()}
        try:
            made = self.func(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise  # a RuntimeError too, but it says nothing about the operation
        except (RuntimeError, NotImplementedError):
            return None
        return [one for one in _leaves(made) if isinstance(one, Tensor) and one.is_floating_point()]


def _kept(value: Any) -> Any:
    """Return a copy: an operation may write to its operand."""
    return value.clone() if isinstance(value, Tensor) else value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return the value with every part of its tuples and lists changed."""
    return type(value)(_mapped(change, one) for one in value) if type(value) in (tuple, list) else change(value)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for one in value for leaf in _leaves(one)]
    return [value]


def _is_on_grid(exact: Tensor, dtype: torch.dtype) -> bool:
    """Return whether every value is one of the dtype, so that no machine needs to round."""
    nearest = exact.to(dtype).double()
    return bool(((nearest == exact) | (exact != exact)).all())


def _terms(call: _Operation, operands: list[Tensor], outputs: list[Tensor]) -> int:
    """Return how many terms a result adds up."""
    if call.name in PRODUCTS:
        last = operands[-1]
        return max(last.shape[-2 if last.ndim > 1 else -1], 1)
    if "softmax" in call.name or call.name in ("cumsum", "logcumsumexp"):
        dimension = next(one for one in call.args if isinstance(one, int))
        return max(operands[0].shape[dimension], 1) if operands[0].ndim else 1
    if call.name.startswith("convolution"):
        weight = operands[2] if call.name == "convolution_backward" else operands[1]
        places = operands[0].numel() // operands[0].shape[1] if call.name == "convolution_backward" else 1
        return max(weight.numel() // weight.shape[0], weight.shape[0], places, 1)
    if call.name in SCATTERED:
        counts = call.results(lambda one: torch.ones_like(one) if _is_modelled(one) else one) or []
        return max([int(one.max()) for one in counts if one.numel()], default=1)
    if call.name.startswith("avg_pool2d"):
        return prod(next(one for one in call.args if isinstance(one, list)))
    fewest = min((one.numel() for one in outputs if one.numel()), default=1)
    return max(max(one.numel() for one in operands) // fewest, 1)


@cache
def _uniform_table(device: str) -> Tensor:
    """Return numbers from −1 to 1."""
    return (_bits_table(device) >> 11).double() * 2.0**-52


@cache
def _bits_table(device: str) -> Tensor:
    bits = np.random.Generator(np.random.Philox(24)).integers(-(2**63), 2**63, TABLE_LENGTH, dtype=np.int64)
    return torch.from_numpy(bits).to(device)
