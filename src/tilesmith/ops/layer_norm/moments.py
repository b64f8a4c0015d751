"""Means and variances of rows that are read block by block. Nothing large is ever subtracted from something as large.

Where only the row itself is summed up, distances from the mean of its first block take the place of its values: however
far the row is from zero, they are not. Where products with another row are summed up too, every place in a block keeps
a running mean of its own over the blocks, with the sum of squared distances from it (Welford's way), and the places are
merged at the end, when the row's mean is known.
"""

import triton
import triton.language as tl

from tilesmith.ops.rms_norm.rows import both_means


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


@triton.jit
def moments_about(origin, distances, squares, n_columns):
    """Mean and variance of each row, from its distances to an origin and their squares, summed up place by place."""
    # Divided before they are added up: the sum of a row's distances can overflow where none of them does.
    moved, mean_square = both_means(distances / n_columns, squares / n_columns, 1)
    # An infinite square stays one: from it nothing can be subtracted.
    variance = tl.where(mean_square == float("inf"), mean_square, tl.maximum(mean_square - moved * moved, 0.0))
    return origin + moved, variance
