"""Device functions over rows of channels: parameters, partial sums, the gradient of a norm."""

import triton
import triton.language as tl


@triton.jit
def load_vector(vector_ptr, columns, is_column, COMPUTE: tl.constexpr):
    """Load a vector as [1, COLUMNS], zeros beyond its end."""
    return tl.load(vector_ptr + columns, mask=is_column, other=0.0).to(COMPUTE)[None, :]


@triton.jit
def norm_gradient(dnormed, standard, inverse_deviation, weight, n_columns):
    """Return the gradient of the rows before the norm, from the gradient of standard · weight + bias."""
    scaled = dnormed * weight
    mean = (tl.sum(scaled, axis=1) / n_columns)[:, None]  # [ROWS, 1]
    projection = (tl.sum(scaled * standard, axis=1) / n_columns)[:, None]  # [ROWS, 1]
    return inverse_deviation * (scaled - mean - standard * projection)


@triton.jit
def store_partial(partials, columns, is_column, x):
    """Store the sum of x, [ROWS, COLUMNS], over this program's rows."""
    tl.store(partials + columns, tl.sum(x.to(partials.dtype.element_ty), axis=0), mask=is_column)
