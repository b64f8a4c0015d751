"""Means and variances of rows that are read block by block. Nothing large is ever subtracted from something as large.

Every place in a block keeps a running mean of its own over the blocks, with the sum of squared distances from it, or of
products of two rows' distances (Welford's way). The places are merged at the end, when the row's mean is known.
"""

import triton
import triton.language as tl


@triton.jit
def stepped(mean, values, mask, share):
    """How far each value is from its running mean, and the mean after it has taken that share of the step."""
    step = tl.where(mask, values - mean, 0.0)
    return step, mean + step * share


@triton.jit
def squared(step, other_step, share):
    """What a value adds to the sum of products of two distances. In this order 0 · ∞ does not come up."""
    return step * (other_step * (1 - share))


@triton.jit
def places_taken(n_columns, BLOCK_SIZE: tl.constexpr, COMPUTE: tl.constexpr):
    """How many columns each place in a block has seen when a row is through."""
    places = tl.arange(0, BLOCK_SIZE)
    return ((n_columns - places + BLOCK_SIZE - 1) // BLOCK_SIZE).to(COMPUTE)[None, :]


@triton.jit
def merged_mean(means, taken, n_columns):
    """The mean of each row, and how far every place's mean is from it."""
    mean = (tl.sum(taken * means, axis=1) / n_columns)[:, None]
    return mean, tl.where(taken > 0, means - mean, 0.0)
