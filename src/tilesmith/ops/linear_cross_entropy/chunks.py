"""The loss and its gradients, for a chunk of rows at a time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tilesmith.ops.cross_entropy.backward import backward as logits_backward
from tilesmith.ops.cross_entropy.backward import plan_gradient
from tilesmith.ops.cross_entropy.forward import forward as logits_forward
from tilesmith.ops.cross_entropy.forward import loss_dtype
from tilesmith.ops.cross_entropy.loss_and_gradient import loss_and_gradient, plan_loss_and_gradient
from tilesmith.ops.matmul.internal.product_into_memory import product_into
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.composing.in_place import InPlace
from tilesmith.ops.runtime.config import Config, replaced
from tilesmith.ops.runtime.flat_arguments import flat_arguments
from tilesmith.ops.runtime.kernels import kernels

# The gradient of hidden sums over this many classes at a time in single precision. One sum over all of 128,256 classes
# had 2.5 times the error of PyTorch's on an H200.
SUMMED_CLASSES = 16384

gradient_over_logits_ = InPlace(
    logits_backward,
    lambda plan, dloss, logits, target, kept, *options: plan_gradient(
        plan, dloss, logits, target, kept, logits, *options
    ),
    overwrites=1,
)
losses_and_gradient_over_logits_ = InPlace(
    loss_and_gradient,
    lambda plan, losses, logits, target, dloss, *options: plan_loss_and_gradient(
        plan, losses, logits, target, dloss, logits, *options
    ),
    overwrites=1,
    filled=1,
)


class Wanted(NamedTuple):
    """Which gradients are computed."""

    hidden_gradient: bool
    weight_gradient: bool
    bias_gradient: bool


@dataclass(frozen=True)
class ChunkConfig(Config):
    """At most this much memory for logits, unless 128 rows, one tile of the BLAS, need more.

    Each chunk reads and writes the whole gradient of the weight, so larger chunks make the GEMMs more efficient:
    8192×4096×128256 bf16 on an H200 takes 40.2 ms with 256 MiB, 39.4 with 512 and 39.7 with 1100.
    """

    chunk_mebibytes: int = 512


def rows_per_chunk(rows: int, row_bytes: int) -> int:
    """Return the rows of a chunk: chunks are about equal, in whole tiles of the BLAS."""
    config = replaced(ChunkConfig(), dict(dispatch.state().overrides))
    most = max((config.chunk_mebibytes << 20) // (row_bytes * 128), 1) * 128
    chunks = max(math.ceil(rows / most), 1)
    return max(min(math.ceil(rows / chunks / 128) * 128, rows), 1)


def logits_in_chunks(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield each chunk of rows and its logits. All chunks share one buffer, which the caller may overwrite."""
    rows, classes = len(hidden), len(weight)
    # The BLAS and the kernels read rows fastest that start at multiples of 128 bytes.
    row_length = math.ceil(classes * hidden.itemsize / 128) * 128 // hidden.itemsize
    chunk_rows = rows_per_chunk(rows, row_length * hidden.itemsize)
    memory = hidden.new_empty(chunk_rows, row_length)[:, :classes]
    for start in range(0, rows, chunk_rows):
        chunk = slice(start, min(start + chunk_rows, rows))
        logits = memory[: chunk.stop - start]
        if bias is None:
            product_into(logits, hidden[chunk], weight.t())
        else:
            torch.addmm(bias, hidden[chunk], weight.t(), out=logits)
        yield chunk, logits


class Logits(NamedTuple):
    """Changes of the logits: times `scale`, then softcap · tanh(logits / softcap) if `softcap` is positive."""

    softcap: float
    scale: float

    def capped_(self, logits: Tensor) -> Tensor | None:
        """Cap the logits in place. Return the slope of the cap at each logit; None without a cap."""
        if not self.softcap:
            return None
        fraction = logits.mul_(1 / self.softcap).tanh_()
        slope = 1 - fraction * fraction
        logits.mul_(self.softcap)
        return slope


class Gradients:
    """The gradients of hidden, weight and bias, added up chunk by chunk. Those that are not wanted stay empty."""

    def __init__(self, hidden: Tensor, weight: Tensor, ignored: Tensor, wanted: Wanted, scale: float = 1.0) -> None:
        """`hidden` is scaled already."""
        self._hidden, self._weight, self.wanted, self._scale = hidden, weight, wanted, scale
        self.ignored = ignored[:, None]
        self.dhidden, self.dweight, _ = empty_gradients(hidden, weight, wanted)
        self.dbias = hidden.new_zeros(len(weight) if wanted.bias_gradient else 0, dtype=loss_dtype(hidden))
        if not len(hidden):  # no chunk will write the first values
            self.dweight.zero_()

    def add(self, chunk: slice, dlogits: Tensor) -> None:
        """Add the part of one chunk. dlogits are [rows, classes]."""
        if self.wanted.hidden_gradient:
            _sum_over_classes(dlogits, self._weight, self.dhidden[chunk])
        if self.wanted.weight_gradient:
            rows = self._hidden[chunk].masked_fill(self.ignored[chunk], 0.0)  # zero times NaN would be NaN
            for some in class_slices(dlogits.shape[1], dlogits.shape[1]):
                torch.addmm(
                    self.dweight[some], dlogits[:, some].t(), rows,
                    beta=0 if chunk.start == 0 else 1, out=self.dweight[some],
                )  # fmt: skip
        if self.wanted.bias_gradient:
            self.dbias += dlogits.sum(0, dtype=self.dbias.dtype)

    def shaped(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients in the shapes of the arguments, all in hidden's dtype."""
        if self._scale != 1:
            self.dhidden.mul_(self._scale)
            self.dbias.mul_(self._scale)
        dhidden = self.dhidden.view(hidden.shape) if self.wanted.hidden_gradient else self.dhidden
        return dhidden, self.dweight, self.dbias.to(hidden.dtype)


def _sum_over_classes(dlogits: Tensor, weight: Tensor, result: Tensor) -> None:
    """Write dlogits · weight.

    A result with fewer digits than the sums is not stored between partial sums, except for that of a few classes.
    """
    most = SUMMED_CLASSES if result.dtype == torch.float32 else len(weight)
    first, *others = class_slices(len(weight), most)
    product_into(result, dlogits[:, first], weight[first])
    for some in others:
        torch.addmm(result, dlogits[:, some], weight[some], out=result)


def class_slices(classes: int, most: int) -> list[slice]:
    """Return slices of at most this many classes, whole multiples of 8, after one for the classes that are left over.

    The BLAS has fast kernels for such multiples alone: with 50,257 classes the gradient of 4,096 × 1,024 hidden units
    took 3.38 ms on an H200, a tenth of the tensor cores' speed, and that of the weight 0.85.
    """
    whole = classes // 8 * 8
    slices = [slice(start, min(start + most, whole)) for start in range(0, whole, most)]
    return slices if whole == classes else [slice(whole, classes), *slices]


def empty_gradients(hidden: Tensor, weight: Tensor, wanted: Wanted) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the gradients of hidden, weight and bias, empty where they are not wanted."""
    shapes = hidden.shape, weight.shape, weight.shape[:1]
    dhidden, dweight, dbias = (
        hidden.new_empty(shape if one else (0,)) for shape, one in zip(shapes, wanted, strict=True)
    )
    return dhidden, dweight, dbias


def as_matrices(hidden: Tensor, weight: Tensor, target: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden as scaled [rows, features], the weight, and the class of each row, in layouts of the BLAS."""
    rows = hidden.reshape(target.numel(), hidden.shape[-1])
    return for_blas(rows if scale == 1 else rows * scale), for_blas(weight), target.reshape(-1)


def for_blas(matrix: Tensor) -> Tensor:
    """Return the matrix if the BLAS takes its layout, by rows or by columns, else a contiguous copy."""
    rows, columns = matrix.shape
    down, along = matrix.stride()
    return matrix if (along == 1 and down >= columns) or (down == 1 and along >= rows) else matrix.contiguous()


@kernels("linear_cross_entropy_forward")
@flat_arguments
def forward(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, label_smoothing: float,
    reduction: str, made: Logits, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the loss, what the backward needs, and the gradients, empty where not wanted.

    The backward needs, for reduction="none", what cross_entropy keeps of each row. Otherwise it needs the factor that
    makes the gradients those of the loss.
    """
    dtype = loss_dtype(hidden)
    per_row = reduction == "none"
    loss = hidden.new_empty(target.shape if per_row else (), dtype=dtype)
    kept = hidden.new_empty((2 * target.numel(),) if per_row else (), dtype=dtype)
    return loss, kept, *empty_gradients(hidden, weight, wanted)


@forward.composed
@flat_arguments
def compute_forward(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, label_smoothing: float,
    reduction: str, made: Logits, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    assert reduction != "none" or not any(wanted), "only the backward knows the factor of each row's gradient"
    rows, matrix, classes = as_matrices(hidden, weight, target, made.scale)
    bias = bias if bias is None or made.scale == 1 else bias * made.scale
    gradients = Gradients(rows, matrix, classes == ignore_index, wanted, made.scale)
    losses, kept = logits_forward.fake(rows, classes, ignore_index, label_smoothing, "none")
    one = losses.new_ones(())
    count = (classes != ignore_index).sum() if reduction == "mean" else None
    inverse_count = one if count is None else one / count.clamp(min=1)
    # The gradient of a mean over thousands of rows is too small for float16: there the backward divides.
    now, later = (one, inverse_count) if rows.dtype == torch.float16 else (inverse_count, one)
    for chunk, logits in logits_in_chunks(rows, matrix, bias):
        options = ignore_index, label_smoothing
        if any(wanted):
            dlogits = losses_and_gradient_over_logits_(
                losses[chunk], logits, classes[chunk], now, *options, made.softcap
            )
            gradients.add(chunk, dlogits)
        else:
            made.capped_(logits)
            losses[chunk], of_rows = logits_forward(logits, classes[chunk], *options, "none")
            kept[2 * chunk.start : 2 * chunk.stop] = of_rows
    if reduction == "none":
        return losses.view(target.shape), kept, *gradients.shaped(hidden)
    loss = losses.sum() if count is None else losses.sum() / count
    return loss, later, *gradients.shaped(hidden)


@kernels("linear_cross_entropy_backward")
@flat_arguments
def backward(
    dloss: Tensor, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, kept: Tensor,
    ignore_index: int, label_smoothing: float, made: Logits, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients for reduction="none", empty where not wanted."""
    return empty_gradients(hidden, weight, wanted)


@backward.composed
@flat_arguments
def compute_backward(
    dloss: Tensor, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, kept: Tensor,
    ignore_index: int, label_smoothing: float, made: Logits, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, matrix, classes = as_matrices(hidden, weight, target, made.scale)
    bias = bias if bias is None or made.scale == 1 else bias * made.scale
    gradients = Gradients(rows, matrix, classes == ignore_index, wanted, made.scale)
    dlosses = dloss.reshape(-1)
    for chunk, logits in logits_in_chunks(rows, matrix, bias):
        of_rows = kept[2 * chunk.start : 2 * chunk.stop]
        options = ignore_index, label_smoothing, "none"
        slope = made.capped_(logits)
        dlogits = gradient_over_logits_(dlosses[chunk], logits, classes[chunk], of_rows, *options)
        if slope is not None:
            dlogits.mul_(slope).masked_fill_(gradients.ignored[chunk], 0.0)
        gradients.add(chunk, dlogits)
    return gradients.shaped(hidden)
