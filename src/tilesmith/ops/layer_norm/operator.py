"""The operator: its definition, its checks, its gradient and its spec."""

from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.layer_norm.backward import backward
from tilesmith.ops.layer_norm.forward import forward
from tilesmith.ops.rms_norm.operator import require_normable
from tilesmith.ops.runtime.arguments import require_floating, require_same_device, require_vector
from tilesmith.ops.runtime.autograd import save_for_backward
from tilesmith.ops.runtime.operator import operator, wants_gradient
from tilesmith.ops.runtime.options import Options
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype)


def native(x: Tensor, weight: Tensor | None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    dtypes = {one.dtype for one in (x, weight, bias) if one is not None}
    is_on_cpu = x.device.type == "cpu"
    if len(dtypes) == 1 and not is_on_cpu:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    wide = reduce(torch.promote_types, dtypes, torch.float32)  # PyTorch's own takes one dtype only
    weight, bias = (one if one is None else one.to(wide) for one in (weight, bias))
    return F.layer_norm(shifted(x.to(wide)), x.shape[-1:], weight, bias, eps).to(x.dtype)


def shifted(x: Tensor) -> Tensor:
    """Return rows with the same norm and the same gradient of it, from which PyTorch's norm rounds less on CPUs.

    PyTorch returns x/σ − mean/σ there, which rounds large equal terms: a constant row would not become zero. The
    second shift subtracts what the rounding of the first mean left. On GPUs the rows are returned as they are.
    """
    for _ in range(2 if x.device.type == "cpu" else 0):
        x = x - _mean(x.detach()).nan_to_num(0.0, 0.0, 0.0)
    return x


def _mean(x: Tensor) -> Tensor:
    """Return the mean of each row; of equal elements the element itself, which a sum would round."""
    first = x[..., :1]
    return torch.where((x == first).all(-1, keepdim=True), first, x.mean(-1, keepdim=True))


def prepare(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Any, ...]:
    return x, weight, bias, eps, wants_gradient((x, weight, bias))


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *_ = inputs
    save_for_backward(context, (x, weight, bias), output[1:])


def gradient(context: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 5
    x, weight, bias, statistics = context.saved_tensors
    weight_gradient = weight is not None and context.needs_input_grad[1]
    bias_gradient = bias is not None and context.needs_input_grad[2]
    dx, dweight, dbias = backward(dy, x, weight, bias, statistics, weight_gradient, bias_gradient)
    return dx, dweight if weight_gradient else None, dbias if bias_gradient else None, None, None


@operator(
    "layer_norm", reference=reference, native=native, forward=forward, save=save, gradient=gradient, prepare=prepare,
    options=Options(returns="first", private_outputs=True),
)  # fmt: skip
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Return (x − mean(x)) / √(var(x) + eps) over the last dimension, times weight and plus bias if there are any.

    The result has x's dtype and is computed in single precision or better. weight and bias may have another dtype.
    """
    require_normable("layer_norm", x, weight, eps)
    if bias is not None:
        require_floating("layer_norm", bias=bias)
    require_vector("layer_norm", "bias", bias, x.shape[-1], of="x")
    require_same_device("layer_norm", x=x, bias=bias)
    return x


def liger(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, eps)  # type: ignore[no-any-return]


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    return {
        "x": layout(torch.randn(case.rows, case.cols, dtype=dtype, device=device)),
        "weight": layout(torch.randn(case.cols, dtype=dtype, device=device)),
        "bias": layout(torch.randn(case.cols, dtype=dtype, device=device)),
        "eps": 1e-5,
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    parameter_bytes = case.cols * dtype.itemsize
    return Cost(
        forward=Work(bytes=2 * elements * dtype.itemsize + 2 * parameter_bytes, flops=7 * elements),
        backward=Work(bytes=3 * elements * dtype.itemsize + 3 * parameter_bytes, flops=15 * elements),
    )


SPEC = Spec(
    name="layer_norm",
    op=layer_norm,
    reference=reference,
    formula="y = (x − mean(x)) / √(var(x) + eps) · w + b",
    cases=[
        Case("one", rows=1, cols=1),
        Case("odd", rows=37, cols=65),
        Case("wide", rows=3, cols=9000),
        Case("large", rows=16384, cols=4096),
        Case("larger", rows=16384, cols=8192),
        Case("largest", rows=8192, cols=16384),
        Case("vocabulary", rows=4096, cols=32768),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native, "liger": liger},
)
