"""The operator: its definition, argument checks, gradient and spec.

`forward.py` and `backward.py` have the kernels and choose between them by the number of classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.cross_entropy.backward import backward
from tilesmith.ops.cross_entropy.forward import forward, loss_dtype
from tilesmith.ops.cross_entropy.loss import (
    require_classes,
    require_loss_options,
    require_target,
)
from tilesmith.ops.runtime.arguments import require_dimensions, require_floating, require_same_device
from tilesmith.ops.runtime.autograd import save_for_backward
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the loss by its definition, for tests."""
    counts = target != ignore_index
    log_probabilities = torch.log_softmax(without_ignored(logits, counts).to(loss_dtype(logits)), -1)
    of_target = log_probabilities.gather(-1, target.where(counts, 0).unsqueeze(-1)).squeeze(-1)
    losses = -(1 - label_smoothing) * of_target
    if label_smoothing > 0:
        losses = losses - label_smoothing * log_probabilities.mean(-1)
    losses = losses.where(counts, 0)
    if reduction == "none":
        return losses
    return losses.sum() / counts.sum() if reduction == "mean" else losses.sum()


def without_ignored(rows: Tensor, counts: Tensor) -> Tensor:
    """Return the rows with zeros in place of ignored ones: zero times NaN would be NaN in the gradient."""
    return rows.masked_fill(~counts[..., None], 0.0)


def pytorch(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return PyTorch's own loss, a rival. NaN in an ignored row reaches that row's gradient."""
    matrix = logits.reshape(target.numel(), logits.shape[-1]).to(loss_dtype(logits))
    loss = F.cross_entropy(
        matrix, target.reshape(-1), ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return loss.view(target.shape) if reduction == "none" else loss


def native(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the operator's result where PyTorch computes: on a CPU, under torch.func, or where PyTorch is faster."""
    counted = without_ignored(logits, target != ignore_index)
    try:
        return pytorch(counted, target, ignore_index, label_smoothing, reduction)
    except IndexError:  # on a CPU, where PyTorch checks the targets
        require_classes("cross_entropy", target, logits.shape[-1], ignore_index)
        raise


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, target, *context.options = inputs
    save_for_backward(context, (logits, target), output[1:])


def gradient(context: Any, dloss: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dloss is None:
        return None, None, None, None, None
    logits, target, kept = context.saved_tensors
    return backward(dloss, logits, target, kept, *context.options), None, None, None, None


def check_values(logits: Tensor, target: Tensor, ignore_index: int, *_: object) -> None:
    require_classes("cross_entropy", target, logits.shape[-1], ignore_index)


@operator(
    "cross_entropy", reference=reference, native=native, forward=forward, save=save, gradient=gradient,
    options=Options(returns="first", private_outputs=True, check_values=check_values),
)  # fmt: skip
def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """log Σ exp(x) − x[target] of each row x of the logits, over their last dimension, which holds the classes.

    For a matrix of logits this is torch.nn.functional.cross_entropy without class weights. `target` has one class as
    int64 for each row. Rows whose target is `ignore_index` have no loss, no gradient, and no part in the mean. With
    label smoothing s the target's probability is 1 − s, and s / classes is added to every class. `reduction` is "mean",
    "sum" or "none". A mean over no rows is NaN.

    The loss is float32, or float64 for float64 logits, as if the logits had been cast, but without the copy. A target
    that is no class makes the loss and the gradient of its row NaN, and so a mean or a sum. Where PyTorch computes, it
    is an error: a ValueError on a CPU, an assertion on the device on a GPU. Inside `tilesmith.debug()` it always is a
    ValueError.
    """
    require_floating("cross_entropy", logits=logits)
    require_dimensions("cross_entropy", "logits", logits, at_least=1)
    require_target("cross_entropy", target, logits.shape[:-1], of="logits")
    require_same_device("cross_entropy", logits=logits, target=target)
    require_loss_options("cross_entropy", ignore_index, label_smoothing, reduction)
    return logits


def liger(logits: Tensor, target: Tensor, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    # Liger overwrites the given logits with their gradient.
    loss = LigerCrossEntropyFunction.apply(
        logits, target, None, -100, 0.0, label_smoothing, reduction, None, False
    )  # fmt: skip
    return loss[0] if isinstance(loss, tuple) else loss  # type: ignore[no-any-return]  # untyped


def quack(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    from quack.cross_entropy import cross_entropy

    return cross_entropy(logits, target, reduction=reduction)  # type: ignore[no-any-return]  # untyped


OPTIONS: dict[str, dict[str, Any]] = {  # of cases that do not use the defaults
    "smoothed": {"label_smoothing": 0.1},
    "each row": {"reduction": "none"},
}


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    target = torch.randint(case.cols, (case.rows,), device=device)
    target[max(case.rows - case.ignored, 0) :] = -100
    logits = torch.randn(case.rows, case.cols, dtype=dtype, device=device)
    return {"logits": layout(logits), "target": layout(target), **OPTIONS.get(case.name, {})}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    read = (case.rows - case.ignored) * case.cols  # five operations each: subtract, scale, exp2, compare, add
    target_bytes = case.rows * torch.int64.itemsize
    return Cost(
        forward=Work(bytes=read * dtype.itemsize + target_bytes, flops=5 * read),
        backward=Work(bytes=(read + elements) * dtype.itemsize + target_bytes, flops=5 * read),
    )


SPEC = Spec(
    name="cross_entropy",
    op=cross_entropy,
    reference=reference,
    formula="loss = mean(log Σ exp(x) − x[target])",
    cases=[
        Case("one", rows=1, cols=1, ignored=0),
        Case("tiny", rows=7, cols=33, ignored=2),
        Case("smoothed", rows=6, cols=130, ignored=1),
        Case("each row", rows=9, cols=70, ignored=2),
        Case("many rows", rows=1030, cols=3, ignored=100),
        Case("past a block", rows=3, cols=5000, ignored=1),
        Case("few long rows", rows=3, cols=20003, ignored=1),
        Case("images", rows=65536, cols=1000, ignored=0),
        Case("vocabulary", rows=8192, cols=32000, ignored=0),
        Case("large vocabulary", rows=4096, cols=128256, ignored=0),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": pytorch, "liger": liger, "quack": quack},
)
