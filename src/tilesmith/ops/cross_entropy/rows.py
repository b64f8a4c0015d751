"""Device code that forward and backward share: targets, running sums of exponentials, and the loss of a row."""

import triton
import triton.language as tl

from tilesmith.ops.runtime.layout import tile_offsets


@triton.jit
def load_targets(target_ptr, rows, n_rows, sizes, target_strides, ignore_index, NESTED: tl.constexpr):
    """Return each row's target, whether the row counts, and whether the target is a class: [ROWS, 1] each.

    A target that is no class must never become an address.
    """
    offsets = tile_offsets(rows, tl.arange(0, 1), sizes, target_strides, NESTED)
    target = tl.load(target_ptr + offsets, mask=(rows < n_rows)[:, None], other=ignore_index)
    return target, target != ignore_index, (target >= 0) & (target < sizes[0])


@triton.jit
def load_target_logits(
    logits_ptr, rows, target, is_read, sizes, logits_strides, NESTED: tl.constexpr, COMPUTE: tl.constexpr
):  # fmt: skip
    """Return the logit of each row's target, and the same with zero where it is not finite: [ROWS, 1] each.

    The logit is NaN where it is not read, which makes the loss NaN.
    """
    row_starts = logits_ptr + tile_offsets(rows, tl.arange(0, 1), sizes, logits_strides, NESTED)
    target_logit = tl.load(row_starts + target * logits_strides[3], mask=is_read, other=float("nan")).to(COMPUTE)
    return target_logit, tl.where(tl.abs(target_logit) < float("inf"), target_logit, 0.0)


@triton.jit
def with_block(x, maximum, exponentials, GROUP: tl.constexpr):
    """Return each lane's maximum and sum of exponentials, [ROWS, LANES], after one more block of columns."""
    x = tl.reshape(x, [maximum.shape[0], GROUP, maximum.shape[1]])
    larger = tl.maximum(maximum, tl.max(x, axis=1))
    shift = without_infinity(larger)
    exponentials *= exponential(maximum - shift)
    exponentials += tl.sum(exponential(x - shift[:, None, :]), axis=1)
    return larger, exponentials


@triton.jit
def loss_of_rows(
    shift, row_sum, target_logit, anchor, difference, counts, n_classes, label_smoothing, SMOOTH: tl.constexpr
):  # fmt: skip
    """Return the loss of each row, [ROWS, 1], from Σ exp(x − shift), and for smoothing from Σ (x − anchor).

    Rows that do not count get zero.
    """
    # Differences stay small where logits are large, so a common offset of a row costs no digits.
    loss = (shift - target_logit) + tl.log(row_sum)
    if SMOOTH:
        to_all = (shift - anchor) + tl.log(row_sum) - difference / n_classes
        loss = (1 - label_smoothing) * loss + label_smoothing * to_all
    return tl.where(counts, loss, 0.0)


@triton.jit
def exponential(x):
    """Return exp(x), zero instead of subnormal results: a third fewer instructions than tl.exp."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def without_infinity(maximum):
    """Return what to subtract before an exponential: the maximum, or zero where all elements so far are −∞."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)
