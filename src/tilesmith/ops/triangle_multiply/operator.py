"""The operator: its checks, who computes it, and its gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.device.images.windows import require_flag
from tilesmith.ops.runtime.arguments import (
    require_chunk,
    require_floating,
    require_mask,
    require_number,
    require_same_device,
    require_same_dtype,
)
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Alternative, Options
from tilesmith.ops.runtime.precision import must_be_exact, tf32_allowed
from tilesmith.ops.triangle_multiply import chunked
from tilesmith.ops.triangle_multiply.exact import update as exact
from tilesmith.ops.triangle_multiply.fused.backward import backward
from tilesmith.ops.triangle_multiply.fused.forward import forward
from tilesmith.ops.triangle_multiply.reference import DIRECTIONS, reference

NAME = "triangle_multiply"
MOST_CHANNELS = 256  # of z or hidden: a tile has all of them, for their norm
MOST_AT_ONCE = 2**18  # elements of z that the kernels multiply exactly in single precision


def in_order(
    z: Tensor, direction: str, mask: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, projection_weight: Tensor,
    gate_weight: Tensor, output_norm_weight: Tensor, output_norm_bias: Tensor, output_weight: Tensor,
    output_gate_weight: Tensor, projection_bias: Tensor | None, gate_bias: Tensor | None,
    output_bias: Tensor | None, output_gate_bias: Tensor | None, eps: float, chunk: int | None, residual: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """As the kernels take them: each bias beside its weight. What comes last is for those who compute to say."""
    return (
        z, mask, norm_weight, norm_bias, projection_weight, projection_bias, gate_weight, gate_bias,
        output_norm_weight, output_norm_bias, output_weight, output_bias, output_gate_weight, output_gate_bias,
        direction == "outgoing", float(eps),
    )  # fmt: skip


def prepare(*arguments: Any) -> tuple[Any, ...]:
    return *in_order(*arguments), arguments[0].dtype == torch.float32 and tf32_allowed()


def prepare_for_chunks(*arguments: Any) -> tuple[Any, ...]:
    *_, chunk, residual = arguments
    return *in_order(*arguments), chunk, residual


def prepare_exact(*arguments: Any) -> tuple[Any, ...]:
    *_, residual = arguments
    return *in_order(*arguments), residual


def takes(z: Tensor, *others: Any) -> bool:
    """Doubles are computed by the kernels only to be tested: tensor cores do nothing for them."""
    output_weight: Tensor = others[9]
    return max(output_weight.shape) <= MOST_CHANNELS and not (z.is_cuda and z.dtype == torch.float64)


def in_whole_products(z: object, *_: object) -> bool:
    """Whether this is much of single precision that must be multiplied exactly.

    The kernels take it apart, and a few rows then fill the registers: forward and backward of four times 64 residues
    took 2.4 ms on an H200, and 9.6 ms of 256, where PyTorch's own operators take 0.73 and 3.2.
    """
    return isinstance(z, Tensor) and z.numel() > MOST_AT_ONCE and must_be_exact(z)


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, context.outgoing, context.eps, context.tf32 = inputs
    context.mark_non_differentiable(*output[1:])
    context.set_materialize_grads(False)
    context.save_for_backward(*output[1:], *tensors)


def gradient(context: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:  # nothing came of the output
        return (None,) * 17
    made = backward(dy, *context.saved_tensors, context.outgoing, context.eps, context.tf32)
    return _of_arguments(context, *made)


def save_for_chunks(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, outgoing, eps, chunk, residual = inputs
    context.numbers = outgoing, eps, chunk, residual
    context.save_for_backward(*tensors)


def gradient_in_chunks(context: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    made = chunked.backward(dy, *context.saved_tensors, *context.numbers)
    return *_of_arguments(context, *made), None


def _of_arguments(
    context: Any, dz: Tensor, dweights: Tensor, doutput_weight: Tensor, sums: Tensor
) -> tuple[Tensor | None, ...]:
    """For each argument of the kernels its gradient, where it has one and it is wanted."""
    channels, hidden = doutput_weight.shape
    dprojection, dgate, doutput_gate = dweights.split((2 * hidden, 2 * hidden, channels))
    (
        doutput_norm_weight, doutput_norm_bias, doutput_bias, doutput_gate_bias,
        dnorm_weight, dnorm_bias, dprojection_bias, dgate_bias,
    ) = sums.split((hidden, hidden, channels, channels, channels, channels, 2 * hidden, 2 * hidden))  # fmt: skip
    gradients = (
        dz, None, dnorm_weight, dnorm_bias, dprojection, dprojection_bias, dgate, dgate_bias, doutput_norm_weight,
        doutput_norm_bias, doutput_weight, doutput_bias, doutput_gate, doutput_gate_bias, None, None, None,
    )  # fmt: skip
    wanted = context.needs_input_grad
    return tuple(one if wanted[place] else None for place, one in enumerate(gradients))


def is_in_chunks(*arguments: Any) -> bool:
    *_, chunk, _ = arguments
    return chunk is not None


COMMON = Options(autocasts=True, returns="first", residual="fused")
IN_CHUNKS = Alternative(
    when=is_in_chunks, forward=chunked.forward, save=save_for_chunks, gradient=gradient_in_chunks,
    prepare=prepare_for_chunks, options=replace(COMMON, runs_anywhere=True),
)  # fmt: skip
EXACT = Alternative(
    when=in_whole_products, forward=exact.forward, save=exact.save, gradient=exact.gradient, prepare=prepare_exact,
    options=replace(COMMON, takes=takes, switches=tf32_allowed),
)  # fmt: skip


@operator(
    NAME, reference=reference, forward=forward, save=save, gradient=gradient, prepare=prepare,
    options=replace(
        COMMON, takes=takes, switches=tf32_allowed, residual="separate", alternatives=(IN_CHUNKS, EXACT)
    ),
)  # fmt: skip
def triangle_multiply(
    z: Tensor,
    *,
    direction: str = "outgoing",
    mask: Tensor | None = None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    projection_weight: Tensor,
    gate_weight: Tensor,
    output_norm_weight: Tensor,
    output_norm_bias: Tensor,
    output_weight: Tensor,
    output_gate_weight: Tensor,
    projection_bias: Tensor | None = None,
    gate_bias: Tensor | None = None,
    output_bias: Tensor | None = None,
    output_gate_bias: Tensor | None = None,
    eps: float = 1e-5,
    chunk: int | None = None,
    residual: bool = False,
) -> Tensor:
    """The triangle multiplicative update of a pair representation z, [batch, n, n, channels], whole:

    zn = norm(z); a, b = mask · σ(gate(zn)) · projection(zn); y = σ(output gate(zn)) · output(output norm(x)), with
    x_ij = Σ_k a_ik · b_jk for `direction="outgoing"` and Σ_k a_ki · b_kj for "incoming", channel by channel.

    - `mask`: boolean [batch, n, n], true for pairs that there are. Others add nothing to any x.
    - `norm_weight`, `norm_bias`: [channels]; `output_norm_weight`, `output_norm_bias`: [hidden].
    - `projection_weight`, `gate_weight`: [2 · hidden, channels], first those for a, then those for b.
    - `output_weight`: [channels, hidden]; `output_gate_weight`: [channels, channels].
    - `projection_bias`, `gate_bias`, `output_bias`, `output_gate_bias`: as long as their weights have rows.
    - `eps`: of both norms.
    - `chunk`: how many rows of y are computed at a time. By default all are, which is faster, and takes more memory:
      forward 5 times that of z against 3, backward 15 times against 5, and 3 against none in between. Gradients of
      chunks cannot be differentiated again.
    - `residual=True`: z + y instead of y, in the same pass over memory where single precision must be exact.

    All of one dtype. Sums are in single precision or better, and in half precision x is held in single. The gradients
    are the same to the bit at every run. Products follow PyTorch's own setting for tf32.
    """
    shapes = _wanted_shapes(z, output_weight)
    given = {
        "norm_weight": norm_weight, "norm_bias": norm_bias, "projection_weight": projection_weight,
        "gate_weight": gate_weight, "output_norm_weight": output_norm_weight, "output_norm_bias": output_norm_bias,
        "output_weight": output_weight, "output_gate_weight": output_gate_weight,
    }  # fmt: skip
    biases = {
        "projection_bias": projection_bias, "gate_bias": gate_bias, "output_bias": output_bias,
        "output_gate_bias": output_gate_bias,
    }  # fmt: skip
    given |= {name: bias for name, bias in biases.items() if bias is not None}
    require_floating(NAME, **given)
    for name, tensor in given.items():
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{NAME}: {name} has shape {tuple(tensor.shape)}, but must have {shapes[name]}")
        require_same_dtype(NAME, name, tensor, "z", z)
    require_mask(NAME, mask, tuple(z.shape[:3]), "[batch, n, n]")
    require_same_device(NAME, z=z, **given, mask=mask)
    require_number(NAME, "eps", eps, at_least=0.0)
    require_chunk(NAME, chunk)
    require_flag(NAME, "residual", residual)
    if direction not in DIRECTIONS:
        raise ValueError(f"{NAME}: direction is {direction!r}, but must be one of {', '.join(DIRECTIONS)}")
    return z


def _wanted_shapes(z: Tensor, output_weight: Tensor) -> dict[str, tuple[int, ...]]:
    """Of everything but z, from z's channels and how many hidden ones the output projection takes."""
    require_floating(NAME, z=z, output_weight=output_weight)
    if z.ndim != 4 or z.shape[1] != z.shape[2]:
        raise ValueError(f"{NAME}: z has shape {tuple(z.shape)}, but must be [batch, n, n, channels]")
    channels = z.shape[3]
    if output_weight.ndim != 2 or output_weight.shape[0] != channels:
        raise ValueError(
            f"{NAME}: output_weight has shape {tuple(output_weight.shape)}, but must have {channels} rows, one for "
            "each channel of z, and a column for each hidden channel"
        )
    hidden = output_weight.shape[1]
    if channels == 0 or hidden == 0:
        raise ValueError(
            f"{NAME}: there are {channels} channels and {hidden} hidden ones, but must be at least one each"
        )
    return {
        "norm_weight": (channels,), "norm_bias": (channels,),
        "projection_weight": (2 * hidden, channels), "projection_bias": (2 * hidden,),
        "gate_weight": (2 * hidden, channels), "gate_bias": (2 * hidden,),
        "output_norm_weight": (hidden,), "output_norm_bias": (hidden,),
        "output_weight": (channels, hidden), "output_bias": (channels,),
        "output_gate_weight": (channels, channels), "output_gate_bias": (channels,),
    }  # fmt: skip
