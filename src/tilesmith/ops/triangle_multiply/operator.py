"""The operator: its checks, which kernels compute a call, and its gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.arguments import (
    require_chunk,
    require_flag,
    require_floating,
    require_mask,
    require_number,
    require_same_device,
    require_same_dtype,
)
from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Alternative, Options
from tilesmith.ops.runtime.precision import must_be_exact, tf32_allowed
from tilesmith.ops.triangle_multiply import chunked
from tilesmith.ops.triangle_multiply.exact import update as exact
from tilesmith.ops.triangle_multiply.fused.operators import backward, forward
from tilesmith.ops.triangle_multiply.parameters import (
    OPTIONAL,
    Parameters,
    gradients_of_inputs,
    no_gradients,
    shapes,
    split_gradients,
)
from tilesmith.ops.triangle_multiply.reference import DIRECTIONS, reference

NAME = "triangle_multiply"
MOST_CHANNELS = 256  # of z or hidden: one tile holds all channels of a pair, for the norm
# Exact single precision with more elements of z, or more channels of z, than these is computed by `exact/`.
MOST_FUSED_EXACT_ELEMENTS = 2**18
MOST_FUSED_EXACT_CHANNELS = 64


def inputs_of_kernels(z: Tensor, direction: str, mask: Tensor | None, *others: Any) -> tuple[Any, ...]:
    """Return what every forward takes, from all arguments of the operator: z, mask, parameters, outgoing, eps."""
    *parameters, eps, _chunk, _residual = others
    return z, mask, *parameters, direction == "outgoing", float(eps)


def prepare(*arguments: Any) -> tuple[Any, ...]:
    return *inputs_of_kernels(*arguments), arguments[0].dtype == torch.float32 and tf32_allowed()


def prepare_for_chunks(*arguments: Any) -> tuple[Any, ...]:
    *_, chunk, residual = arguments
    return *inputs_of_kernels(*arguments), chunk, residual


def prepare_exact(*arguments: Any) -> tuple[Any, ...]:
    *_, residual = arguments
    return *inputs_of_kernels(*arguments), residual


@flat_arguments
def takes(z: Tensor, mask: Tensor | None, parameters: Parameters[Tensor], *numbers: Any) -> bool:
    """Return whether the kernels can compute this call. PyTorch computes float64 on a GPU and wider tensors."""
    most_channels = max(parameters.output_weight.shape)
    return most_channels <= MOST_CHANNELS and not (z.is_cuda and z.dtype == torch.float64)


def needs_separate_gemms(z: object, *_: object) -> bool:
    """Return whether separate GEMMs (`exact/`) compute this call: exact single precision, a large z or many channels.

    The fused kernels split single precision into bf16 parts, which take registers, so their tiles have few rows.
    PyTorch's separate operators beat them, forward and backward on an H200: four times 64 residues take 2.4 ms fused
    and 0.73 ms by PyTorch; 256 residues 9.6 and 3.2 ms; with 256 channels, 29 residues 2.1 and 0.23 ms.
    """
    if not isinstance(z, Tensor) or z.is_nested or not must_be_exact(z):
        return False
    return z.numel() > MOST_FUSED_EXACT_ELEMENTS or z.shape[-1:].numel() > MOST_FUSED_EXACT_CHANNELS


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, outgoing, eps, tf32 = inputs
    context.numbers = outgoing, eps, tf32
    context.mark_non_differentiable(*output[1:])
    context.set_materialize_grads(False)
    context.save_for_backward(*output[1:], *tensors)


def gradient(context: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return no_gradients(context)
    dz, *dparameters = backward(dy, *context.saved_tensors, *context.numbers)
    return gradients_of_inputs(context, dz, split_gradients(*dparameters))


def save_for_chunks(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, outgoing, eps, chunk, residual = inputs
    context.numbers = outgoing, eps, chunk, residual
    context.save_for_backward(*tensors)


def gradient_in_chunks(context: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dz, *dparameters = chunked.backward(dy, *context.saved_tensors, *context.numbers)
    return gradients_of_inputs(context, dz, split_gradients(*dparameters))


def is_in_chunks(*arguments: Any) -> bool:
    *_, chunk, _ = arguments
    return chunk is not None


COMMON = Options(autocasts=True, returns="first", residual="fused")
IN_CHUNKS = Alternative(
    when=is_in_chunks, forward=chunked.forward, save=save_for_chunks, gradient=gradient_in_chunks,
    prepare=prepare_for_chunks, options=replace(COMMON, runs_anywhere=True),
)  # fmt: skip
EXACT = Alternative(
    when=needs_separate_gemms, forward=exact.forward, save=exact.save, gradient=exact.gradient, prepare=prepare_exact,
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
    projection_bias: Tensor | None = None,
    gate_weight: Tensor,
    gate_bias: Tensor | None = None,
    output_norm_weight: Tensor,
    output_norm_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor | None = None,
    output_gate_weight: Tensor,
    output_gate_bias: Tensor | None = None,
    eps: float = 1e-5,
    chunk: int | None = None,
    residual: bool = False,
) -> Tensor:
    """The triangle multiplicative update of a pair representation z, [batch, n, n, channels]:

    zn = norm(z); a, b = mask · σ(gate(zn)) · projection(zn); y = σ(output gate(zn)) · output(output norm(x)), with
    x_ij = Σ_k a_ik · b_jk for `direction="outgoing"` and Σ_k a_ki · b_kj for "incoming", channel by channel.

    - `mask`: [batch, n, n], boolean or numbers: zero for pairs that do not exist, which add nothing to any x. It has no
      gradient.
    - `norm_weight`, `norm_bias`: [channels]; `output_norm_weight`, `output_norm_bias`: [hidden].
    - `projection_weight`, `gate_weight`: [2 · hidden, channels], the rows for a, then the rows for b.
    - `output_weight`: [channels, hidden]; `output_gate_weight`: [channels, channels].
    - `projection_bias`, `gate_bias`, `output_bias`, `output_gate_bias`: one element for each row of their weight.
    - `eps`: of both norms.
    - `chunk`: how many rows of y are computed at a time. By default all rows, which is faster and takes more memory.
      Memory in sizes of z, by default and with chunks, if hidden = channels: forward 5 and 3, saved for the backward 3
      (in exact single precision 11) and none, backward 15 and 5. Gradients of chunks cannot be differentiated again.
    - `residual=True`: return z + y instead of y. Chunks and exact single precision add z in the same pass over memory.

    All tensors have one dtype. Sums are in single precision or better; with float16, x is float32. Gradients are the
    same to the bit at every run. Products follow PyTorch's setting for tf32.
    """
    parameters = Parameters(
        norm_weight, norm_bias, projection_weight, projection_bias, gate_weight, gate_bias, output_norm_weight,
        output_norm_bias, output_weight, output_bias, output_gate_weight, output_gate_bias,
    )  # fmt: skip
    _require_parameters(z, parameters)
    require_mask(NAME, mask, tuple(z.shape[:3]), "[batch, n, n]", takes_numbers=True)
    require_same_device(NAME, z=z, **parameters._asdict(), mask=mask)
    require_number(NAME, "eps", eps, at_least=0.0)
    require_chunk(NAME, chunk)
    require_flag(NAME, "residual", residual)
    if direction not in DIRECTIONS:
        raise ValueError(f"{NAME}: direction is {direction!r}, but must be one of {', '.join(DIRECTIONS)}")
    return z


def _require_parameters(z: Tensor, parameters: Parameters[Tensor]) -> None:
    """Raise an error that names the first parameter whose shape or dtype does not go with z."""
    output_weight = parameters.output_weight
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
            f"{NAME}: output_weight has shape {tuple(output_weight.shape)}, but must have at least one row and column"
        )
    wanted = shapes(channels, hidden)
    for name, tensor in parameters._asdict().items():
        if tensor is None and name in OPTIONAL:
            continue
        require_floating(NAME, **{name: tensor})
        if tuple(tensor.shape) != wanted[name]:
            raise ValueError(f"{NAME}: {name} has shape {tuple(tensor.shape)}, but must have {wanted[name]}")
        require_same_dtype(NAME, name, tensor, "z", z)
