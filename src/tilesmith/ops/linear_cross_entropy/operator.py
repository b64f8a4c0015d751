"""The operator: its meaning, its checks, its gradient, its spec."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.cross_entropy import operator as cross_entropy
from tilesmith.ops.cross_entropy.loss import (
    may_overwrite_kept,
    require_classes,
    require_loss_options,
    require_target,
)
from tilesmith.ops.linear_cross_entropy.chunks import Logits, Wanted, backward, forward
from tilesmith.ops.linear_cross_entropy.scaling import scale_, scaled
from tilesmith.ops.runtime.arguments import (
    dtype_name,
    require_dimensions,
    require_floating,
    require_number,
    require_same_device,
)
from tilesmith.ops.runtime.autograd import save_for_backward
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.spec import Case, Cost, Layout, Spec, Work

NAME = "linear_cross_entropy"


def reference(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, reduction: str = "mean", softcap: float = 0.0, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    counted = cross_entropy.without_ignored(hidden, target != ignore_index)
    logits = logits_of(counted, weight, bias, softcap, scale)
    return cross_entropy.reference(logits, target, ignore_index, label_smoothing, reduction)


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float, scale: float) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    logits = logits if scale == 1 else logits * scale
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def pytorch(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, reduction: str = "mean", softcap: float = 0.0, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    logits = logits_of(hidden, weight, bias, softcap, scale)
    return cross_entropy.pytorch(logits, target, ignore_index, label_smoothing, reduction)


def native(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, reduction: str = "mean", softcap: float = 0.0, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    counted = cross_entropy.without_ignored(hidden, target != ignore_index)
    logits = logits_of(counted, weight, bias, softcap, scale)
    try:
        return cross_entropy.native(logits, target, ignore_index, label_smoothing, reduction)
    except ValueError:  # a target that is no class
        require_classes(NAME, target, len(weight), ignore_index)
        raise


def prepare(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, label_smoothing: float,
    reduction: str, softcap: float, scale: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the arguments, and which gradients the forward computes."""
    fused = torch.is_grad_enabled() and reduction != "none"
    wanted = (fused and one is not None and one.requires_grad for one in (hidden, weight, bias))
    return (
        hidden, weight, target, bias, ignore_index, label_smoothing, reduction, float(softcap), float(scale), *wanted
    )  # fmt: skip


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, target, bias, *options = inputs
    context.ignore_index, context.label_smoothing, context.reduction, *context.logits = options[:5]
    # A gradient that the forward computed needs no arguments, but autograd must know that it depends on them.
    save_for_backward(context, (hidden, weight, target, bias), output[1:])


def gradient(context: Any, dloss: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dloss is None:
        return gradients_of_inputs(None, None, None)
    hidden, weight, target, bias, kept, *gradients = context.saved_tensors
    to_hidden, to_weight, _target, to_bias, *_options = map(bool, context.needs_input_grad)
    wanted = Wanted(to_hidden, to_weight, to_bias)
    if context.reduction == "none":
        options = context.ignore_index, context.label_smoothing
        gradients = backward(dloss, hidden, weight, target, bias, kept, *options, *context.logits, *wanted)
    else:
        scale = scale_ if may_overwrite_kept(context) else scaled
        factor = dloss * kept
        gradients = [
            scale(one, factor) if is_wanted else None for one, is_wanted in zip(gradients, wanted, strict=True)
        ]
    return gradients_of_inputs(*(one if is_wanted else None for one, is_wanted in zip(gradients, wanted, strict=True)))


def gradients_of_inputs(
    dhidden: Tensor | None, dweight: Tensor | None, dbias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return one gradient for each input of the forward, None for the target and the options."""
    options = (None for _ in ("ignore_index", "label_smoothing", "reduction", *Logits._fields, *Wanted._fields))
    return dhidden, dweight, None, dbias, *options


def check_values(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, *_: object
) -> None:
    require_classes(NAME, target, weight.shape[0], ignore_index)


@operator(
    NAME, reference=reference, native=native, forward=forward, save=save, gradient=gradient, prepare=prepare,
    options=Options(returns="first", private_outputs=True, check_values=check_values, autocasts=True),
)  # fmt: skip
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """cross_entropy(hidden · weightᵀ + bias, target, …), without holding all logits in memory.

    `hidden` has the features in its last dimension. `weight` has one row of features for each class, as torch.nn.Linear
    has it. `target` has one class as int64 for each row of `hidden`. The other arguments and the dtype of the loss are
    those of `cross_entropy`.

    - `scale`: the logits are multiplied by it.
    - `softcap`: where positive, logits become softcap · tanh(logits / softcap), after `scale`.

    Logits take 512 MiB at a time, or as much as `tilesmith.ops.configured(chunk_mebibytes=…)` sets. With "mean" and
    "sum" the forward computes the gradients and keeps them for the backward. Products follow PyTorch's settings for
    tf32.
    """
    require_floating(NAME, hidden=hidden, weight=weight)
    if bias is not None:
        require_floating(NAME, bias=bias)
    require_dimensions(NAME, "hidden", hidden, at_least=1)
    if weight.ndim != 2 or weight.shape[0] == 0 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"{NAME}: weight has shape {tuple(weight.shape)}, but must have one row for each class "
            f"and {hidden.shape[-1]} columns, as hidden has"
        )
    if bias is not None and (bias.ndim != 1 or bias.shape[0] != weight.shape[0]):
        raise ValueError(
            f"{NAME}: bias has shape {tuple(bias.shape)}, but must be a vector of {weight.shape[0]} elements, "
            "one for each row of weight"
        )
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != hidden.dtype:
            raise TypeError(f"{NAME}: {name} has dtype {dtype_name(tensor)}, but hidden has {dtype_name(hidden)}")
    require_target(NAME, target, hidden.shape[:-1], of="hidden")
    require_same_device(NAME, hidden=hidden, weight=weight, target=target, bias=bias)
    require_loss_options(NAME, ignore_index, label_smoothing, reduction)
    require_number(NAME, "softcap", softcap, at_least=0.0)
    require_number(NAME, "scale", scale, at_least=-float("inf"))
    return hidden


def liger(hidden: Tensor, weight: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    made = LigerFusedLinearCrossEntropyFunction.apply(
        hidden, weight, target, None, None, -100, 0.0, 0.0, reduction
    )  # fmt: skip
    return made[0] if isinstance(made, tuple) else made  # type: ignore[no-any-return]  # untyped


def quack(hidden: Tensor, weight: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return chunked_linear_cross_entropy(hidden, weight, target, reduction=reduction)  # type: ignore[no-any-return]


OPTIONS: dict[str, dict[str, Any]] = {"each row": {"reduction": "none"}}  # of cases that do not use the defaults


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    target = torch.randint(case.classes, (case.rows,), device=device)
    target[max(case.rows - case.ignored, 0) :] = -100
    weight = torch.randn(case.classes, case.features, dtype=dtype, device=device) * case.features**-0.5
    return {
        "hidden": layout(torch.randn(case.rows, case.features, dtype=dtype, device=device)),
        # The same row for all classes would make every gradient zero.
        "weight": weight if layout.name == "expanded" else layout(weight),
        "target": layout(target),
        **OPTIONS.get(case.name, {}),
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    product = 2 * case.rows * case.features * case.classes
    operands = (case.rows + case.classes) * case.features * dtype.itemsize
    target_bytes = case.rows * torch.int64.itemsize
    return Cost(
        forward=Work(bytes=operands + target_bytes, flops=product + 5 * case.rows * case.classes),
        backward=Work(bytes=2 * operands + target_bytes, flops=2 * product + 5 * case.rows * case.classes),
    )


SPEC = Spec(
    name=NAME,
    op=linear_cross_entropy,
    reference=reference,
    formula="loss = mean(log Σ exp(x) − x[target]), x = hidden · weightᵀ",
    cases=[
        Case("one", rows=1, features=1, classes=1, ignored=0),
        Case("tiny", rows=7, features=12, classes=33, ignored=2),
        Case("each row", rows=9, features=9, classes=70, ignored=1),
        Case("past a block", rows=5, features=9, classes=4500, ignored=1),
        Case("small vocabulary", rows=8192, features=2048, classes=32000, ignored=0),
        Case("large vocabulary", rows=8192, features=4096, classes=128256, ignored=0),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": pytorch, "liger": liger, "quack": quack},
)
