"""Means and variances of rows that are read block by block, by Welford's algorithm.

Each of the BLOCK_SIZE lanes keeps a running mean over the blocks, and the sum of squared distances from that mean (or
of products of two rows' distances). The lanes are merged at the end, when the row's mean is known. No step subtracts
two large numbers that are close to each other.
"""

import triton
import triton.language as tl


@triton.jit
def step_mean(mean, values, mask, inverse_count):
    """Return each value's distance from its lane's mean, and the mean with the value.

    `inverse_count` is 1 / the number of values that the new mean is over.
    """
    step = tl.where(mask, values - mean, 0.0)
    return step, mean + step * inverse_count  # [ROWS, BLOCK_SIZE] each


@triton.jit
def product_of_steps(step, other_step, inverse_count):
    """Return what a value adds to the sum of products of two distances. This order never computes 0 · ∞."""
    return step * (other_step * (1 - inverse_count))  # [ROWS, BLOCK_SIZE]


@triton.jit
def columns_per_lane(n_columns, BLOCK_SIZE: tl.constexpr, COMPUTE: tl.constexpr):
    """Return how many columns of a row each lane of a block has seen."""
    lanes = tl.arange(0, BLOCK_SIZE)
    return ((n_columns - lanes + BLOCK_SIZE - 1) // BLOCK_SIZE).to(COMPUTE)[None, :]  # [1, BLOCK_SIZE]


@triton.jit
def merge_lanes(means, counts, n_columns):
    """Return the mean of each row, and the distance of each lane's mean from the row's."""
    mean = (tl.sum(counts * means, axis=1) / n_columns)[:, None]  # [ROWS, 1], rounded
    mean += (tl.sum(tl.where(counts > 0, counts * (means - mean), 0.0), axis=1) / n_columns)[:, None]
    return mean, tl.where(counts > 0, means - mean, 0.0)  # [ROWS, BLOCK_SIZE]
