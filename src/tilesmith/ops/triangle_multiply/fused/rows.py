"""What the kernels share that go through pairs of residues row by row: device code only."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pairs_of_program(n_residues, ROWS: tl.constexpr):
    """The member of the batch, the i, and the j's that this program takes."""
    blocks = tl.cdiv(n_residues, ROWS)
    program = tl.program_id(0)
    j = program % blocks * ROWS + tl.arange(0, ROWS)
    i = program // blocks % n_residues
    batch = program // blocks // n_residues
    return batch.to(tl.int64), i.to(tl.int64), j.to(tl.int64)


@triton.jit
def starts_of_pairs(x_ptr, batch, i, j, batch_stride, i_stride, j_stride):
    """Where the channels of these pairs begin, in a tensor [batch, n, n, channels] that has them side by side."""
    return x_ptr + batch * batch_stride + i * i_stride + j * j_stride


@triton.jit
def starts_of_rows(x_ptr, batch, i, j, n_residues, n_columns):
    """The same in one without gaps."""
    return x_ptr + ((batch * n_residues + i) * n_residues + j) * n_columns


@triton.jit
def starts_in_matrices(x_ptr, batch, i, j, n_residues, n_hidden, PADDED: tl.constexpr):
    """Where these pairs are in the first channel's matrix, and how far the next one's is: [batch, channels, n, n],
    PADDED where rows are filled up to a multiple of 16."""
    length = tl.cdiv(n_residues, 16) * 16 if PADDED else n_residues
    of_channel = n_residues.to(tl.int64) * length
    return x_ptr + batch * n_hidden * of_channel + i * length + j, of_channel


@triton.jit
def load_rows(starts, j, columns, n_residues, n_columns, of_channel):
    """Pairs × columns, zeros beyond both. `of_channel` is None where columns are neighbours, else their distance."""
    if of_channel is None:
        mask = (j < n_residues)[:, None] & (columns < n_columns)[None, :]
        x = tl.load(starts[:, None] + columns[None, :], mask=mask, other=0.0)
    else:
        mask = (columns < n_columns)[:, None] & (j < n_residues)[None, :]
        x = tl.trans(tl.load(starts[None, :] + columns[:, None] * of_channel, mask=mask, other=0.0))
    return x


@triton.jit
def store_rows(starts, x, j, columns, n_residues, n_columns):
    mask = (j < n_residues)[:, None] & (columns < n_columns)[None, :]
    tl.store(starts[:, None] + columns[None, :], x.to(starts.dtype.element_ty), mask=mask)


@triton.jit
def store_channels(starts, x, j, columns, n_residues, n_columns, of_channel):
    """The padding is written too: rows then end at multiples of what is stored at once."""
    mask = (columns < n_columns)[:, None] & (j < tl.cdiv(n_residues, 16) * 16)[None, :]
    pointers = starts[None, :] + columns[:, None] * of_channel
    tl.store(pointers, tl.trans(x.to(starts.dtype.element_ty)), mask=mask)


@triton.jit
def store_partial(partials, columns, is_column, x):
    """What this program's rows add up to."""
    tl.store(partials + columns, tl.sum(x.to(partials.dtype.element_ty), axis=0), mask=is_column)


@triton.jit
def load_statistics(starts, j, columns, n_residues, n_columns, of_channel, eps, COMPUTE: tl.constexpr):
    """The mean of each row, and 1 / its deviation, as columns."""
    x = load_rows(starts, j, columns, n_residues, n_columns, of_channel).to(COMPUTE)
    mean = (tl.sum(x, axis=1) / n_columns)[:, None]
    centred = tl.where((columns < n_columns)[None, :], x - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(centred * centred, axis=1) / n_columns + eps)[:, None]


@triton.jit
def load_standard(
    starts, mean, inverse_deviation, j, columns, n_residues, n_columns, of_channel, COMPUTE: tl.constexpr
):  # fmt: skip
    """Rows with mean zero and variance one, zeros beyond their end."""
    x = load_rows(starts, j, columns, n_residues, n_columns, of_channel).to(COMPUTE)
    return tl.where((columns < n_columns)[None, :], (x - mean) * inverse_deviation, 0.0)


@triton.jit
def load_vector(vector_ptr, columns, is_column, COMPUTE: tl.constexpr):
    """As a row; zeros beyond its end."""
    return tl.load(vector_ptr + columns, mask=is_column, other=0.0).to(COMPUTE)[None, :]


@triton.jit
def normed(standard, weight_ptr, bias_ptr, columns, n_columns, COMPUTE: tl.constexpr):
    weight = load_vector(weight_ptr, columns, columns < n_columns, COMPUTE)
    return standard * weight + load_vector(bias_ptr, columns, columns < n_columns, COMPUTE)


@triton.jit
def load_normed(
    starts, weight_ptr, bias_ptr, j, columns, n_residues, n_columns, of_channel, eps,
    DTYPE: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Whole rows, normed, as DTYPE; the mean of each, and 1 / its deviation, as columns."""
    mean, inverse_deviation = load_statistics(
        starts, j, columns, n_residues, n_columns, of_channel, eps, COMPUTE
    )  # fmt: skip
    standard = load_standard(
        starts, mean, inverse_deviation, j, columns, n_residues, n_columns, of_channel, COMPUTE
    )  # fmt: skip
    return normed(standard, weight_ptr, bias_ptr, columns, n_columns, COMPUTE).to(DTYPE), mean, inverse_deviation


@triton.jit
def norm_gradient(dnormed, standard, inverse_deviation, weight, n_columns):
    """Of the rows that were normed, from that of standard · weight + bias."""
    scaled = dnormed * weight
    mean = (tl.sum(scaled, axis=1) / n_columns)[:, None]
    projection = (tl.sum(scaled * standard, axis=1) / n_columns)[:, None]
    return inverse_deviation * (scaled - mean - standard * projection)


@triton.jit
def load_weight(weight_ptr, outputs, is_output, inputs, n_inputs):
    """Of a projection, as [inputs, outputs]."""
    pointers = weight_ptr + outputs[None, :] * n_inputs + inputs[:, None]
    return tl.load(pointers, mask=is_output[None, :] & (inputs < n_inputs)[:, None], other=0.0)


@triton.jit
def project_norm(
    held, starts, norm_weight_ptr, norm_bias_ptr, weight_ptr, bias_ptr, second_weight_ptr, second_bias_ptr,
    mean, inverse_deviation, j, outputs, is_output, n_residues, n_inputs, of_channel,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """norm(x) · weightᵀ + bias for some outputs, and the same with a second weight if there is one.

    Where a block takes all inputs, the normed rows are those `held`. Else x is read anew, from cache, and normed as it
    comes, unless there is no weight of a norm and it is normed already: to hold all of its columns ready for the tensor
    cores takes more registers than there are in single precision.
    """
    first = tl.zeros([j.shape[0], outputs.shape[0]], COMPUTE)
    second = tl.zeros([j.shape[0], outputs.shape[0]], COMPUTE)
    if held.shape[1] <= BLOCK_INPUTS:
        inputs = tl.arange(0, held.shape[1])
        weight = load_weight(weight_ptr, outputs, is_output, inputs, n_inputs)
        first = tl.dot(held, weight, first, input_precision=PRECISION, out_dtype=COMPUTE)
        if second_weight_ptr is not None:
            weight = load_weight(second_weight_ptr, outputs, is_output, inputs, n_inputs)
            second = tl.dot(held, weight, second, input_precision=PRECISION, out_dtype=COMPUTE)
    else:
        for start in range(0, n_inputs, BLOCK_INPUTS):
            inputs = start + tl.arange(0, BLOCK_INPUTS)
            if norm_weight_ptr is None:
                x = load_rows(starts, j, inputs, n_residues, n_inputs, of_channel)
            else:
                standard = load_standard(
                    starts, mean, inverse_deviation, j, inputs, n_residues, n_inputs, of_channel, COMPUTE
                )  # fmt: skip
                x = normed(standard, norm_weight_ptr, norm_bias_ptr, inputs, n_inputs, COMPUTE).to(held.dtype)
            weight = load_weight(weight_ptr, outputs, is_output, inputs, n_inputs)
            first = tl.dot(x, weight, first, input_precision=PRECISION, out_dtype=COMPUTE)
            if second_weight_ptr is not None:
                weight = load_weight(second_weight_ptr, outputs, is_output, inputs, n_inputs)
                second = tl.dot(x, weight, second, input_precision=PRECISION, out_dtype=COMPUTE)
    if bias_ptr is not None:
        first += load_vector(bias_ptr, outputs, is_output, COMPUTE)
    if second_bias_ptr is not None:
        second += load_vector(second_bias_ptr, outputs, is_output, COMPUTE)
    return first, second


@triton.jit
def is_unmasked(mask_ptr, j, batch, i, n_residues, batch_stride, i_stride, j_stride):
    """As a column."""
    pointers = mask_ptr + batch * batch_stride + i * i_stride + j * j_stride
    return tl.load(pointers, mask=j < n_residues, other=0).to(tl.int1)[:, None]
