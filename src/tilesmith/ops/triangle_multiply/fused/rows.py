"""Device code that the portable kernels share: loads, norms, projections and stores of rows of pairs.

Arguments that travel together are tuples:

- `rows`: (starts, j, n_residues, channel_stride), the pairs ij of one program. `starts`, [ROWS], are the addresses of
  their first channel. `channel_stride` is None where channels are adjacent.
- `norm`: (weight_ptr, bias_ptr, mean, inverse_deviation). mean and inverse_deviation are [ROWS, 1].
- `source`: (held, rows, norm), what a projection reads: normed rows [ROWS, COLUMNS], where x is, and its norm.
- `layer`: (weight_ptr, bias_ptr), a projection. bias_ptr may be None.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilesmith.ops.device.channels import load_vector

NOT_SPECIALISED = [
    "n_residues", "n_channels", "n_hidden",
    *(f"{name}_{side}_stride" for name in ("z", "y", "dy", "dz", "mask") for side in ("batch", "i", "j")),
]  # fmt: skip


@triton.jit
def pairs_of_program(n_residues, ROWS: tl.constexpr):
    """Return the index in the batch, i, and the j's of this program, [ROWS]."""
    blocks = tl.cdiv(n_residues, ROWS)
    program = tl.program_id(0)
    j = program % blocks * ROWS + tl.arange(0, ROWS)
    i = program // blocks % n_residues
    batch = program // blocks // n_residues
    return batch.to(tl.int64), i.to(tl.int64), j.to(tl.int64)


@triton.jit
def starts_of_pairs(x_ptr, batch, i, j, batch_stride, i_stride, j_stride):
    """Return the address of each pair's first channel in a tensor [batch, n, n, channels] of any strides: [ROWS]."""
    return x_ptr + batch * batch_stride + i * i_stride + j * j_stride


@triton.jit
def starts_of_rows(x_ptr, batch, i, j, n_residues, n_columns):
    """Return the address of each pair's first column in a contiguous tensor [batch, n, n, columns]: [ROWS]."""
    return x_ptr + ((batch * n_residues + i) * n_residues + j) * n_columns


@triton.jit
def starts_in_matrices(x_ptr, batch, i, j, n_residues, n_hidden, PADDED: tl.constexpr):
    """Return each pair's address in the first channel's matrix, [ROWS], and the stride between channels.

    The tensor is [batch, channels, n, n]. PADDED: rows are padded to a multiple of 16.
    """
    length = tl.cdiv(n_residues, 16) * 16 if PADDED else n_residues
    channel_stride = n_residues.to(tl.int64) * length
    return x_ptr + batch * n_hidden * channel_stride + i * length + j, channel_stride


@triton.jit
def load_rows(rows, columns, n_columns):
    """Load [ROWS, COLUMNS], zeros beyond the last pair and the last column."""
    starts, j, n_residues, channel_stride = rows
    if channel_stride is None:
        mask = (j < n_residues)[:, None] & (columns < n_columns)[None, :]
        x = tl.load(starts[:, None] + columns[None, :], mask=mask, other=0.0)  # [ROWS, COLUMNS]
    else:
        mask = (columns < n_columns)[:, None] & (j < n_residues)[None, :]
        x = tl.trans(tl.load(starts[None, :] + columns[:, None] * channel_stride, mask=mask, other=0.0))
    return x


@triton.jit
def store_rows(starts, x, j, columns, n_residues, n_columns):
    """Store [ROWS, COLUMNS] where columns are adjacent."""
    mask = (j < n_residues)[:, None] & (columns < n_columns)[None, :]
    tl.store(starts[:, None] + columns[None, :], x.to(starts.dtype.element_ty), mask=mask)


@triton.jit
def store_channels(starts, x, j, columns, n_residues, n_columns, channel_stride):
    """Store [ROWS, COLUMNS] into a matrix for each column, padding included: rows then end at whole vectors."""
    mask = (columns < n_columns)[:, None] & (j < tl.cdiv(n_residues, 16) * 16)[None, :]
    pointers = starts[None, :] + columns[:, None] * channel_stride
    tl.store(pointers, tl.trans(x.to(starts.dtype.element_ty)), mask=mask)


@triton.jit
def load_statistics(rows, columns, n_columns, eps, COMPUTE: tl.constexpr):
    """Return the mean of each row and 1 / its deviation, both [ROWS, 1]. The mean of equal elements is exact."""
    loaded = load_rows(rows, columns, n_columns)  # [ROWS, COLUMNS]
    x = loaded.to(COMPUTE)
    in_row = (columns < n_columns)[None, :]
    mean = (tl.sum(x, axis=1) / n_columns)[:, None]  # [ROWS, 1]
    if loaded.dtype == COMPUTE:  # add what rounding left; the sum of equal elements of 16 bits is exact
        mean += (tl.sum(tl.where(in_row, x - mean, 0.0), axis=1) / n_columns)[:, None]
    centred = tl.where(in_row, x - mean, 0.0)  # [ROWS, COLUMNS]
    return mean, tl.rsqrt(tl.sum(centred * centred, axis=1) / n_columns + eps)[:, None]


@triton.jit
def load_standard(rows, mean, inverse_deviation, columns, n_columns, COMPUTE: tl.constexpr):
    """Return rows of mean zero and variance one, [ROWS, COLUMNS], zeros beyond the last column."""
    x = load_rows(rows, columns, n_columns).to(COMPUTE)
    return tl.where((columns < n_columns)[None, :], (x - mean) * inverse_deviation, 0.0)


@triton.jit
def normed(standard, weight_ptr, bias_ptr, columns, n_columns, COMPUTE: tl.constexpr):
    """Return standard rows times the norm's weight plus its bias, [ROWS, COLUMNS]."""
    weight = load_vector(weight_ptr, columns, columns < n_columns, COMPUTE)
    return standard * weight + load_vector(bias_ptr, columns, columns < n_columns, COMPUTE)


@triton.jit
def load_normed(
    rows, weight_ptr, bias_ptr, columns, n_columns, eps, DTYPE: tl.constexpr, COMPUTE: tl.constexpr
):  # fmt: skip
    """Return normed rows as DTYPE, [ROWS, COLUMNS], and the `norm` that made them."""
    mean, inverse_deviation = load_statistics(rows, columns, n_columns, eps, COMPUTE)
    standard = load_standard(rows, mean, inverse_deviation, columns, n_columns, COMPUTE)
    x = normed(standard, weight_ptr, bias_ptr, columns, n_columns, COMPUTE).to(DTYPE)
    return x, (weight_ptr, bias_ptr, mean, inverse_deviation)


@triton.jit
def load_weight(weight_ptr, outputs, is_output, inputs, n_inputs):
    """Load a tile of a projection's weight, transposed: [INPUTS, OUTPUTS]."""
    pointers = weight_ptr + outputs[None, :] * n_inputs + inputs[:, None]
    return tl.load(pointers, mask=is_output[None, :] & (inputs < n_inputs)[:, None], other=0.0)


@triton.jit
def project_norm(
    source, layer, second_layer, outputs, is_output, n_inputs,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """Return norm(x) · weightᵀ + bias for some outputs, [ROWS, OUTPUTS], and the same for a second layer.

    Where one block holds all inputs, `held` are the normed rows. Otherwise x is read again, from cache, and normed by
    blocks: holding all columns ready for the tensor cores takes more registers than single precision has. A `norm`
    without a weight says that x is normed already. Without a second layer the second result means nothing.
    """
    held, rows, norm = source
    norm_weight_ptr, norm_bias_ptr, mean, inverse_deviation = norm
    weight_ptr, bias_ptr = layer
    second_weight_ptr, second_bias_ptr = second_layer
    first = tl.zeros([held.shape[0], outputs.shape[0]], COMPUTE)  # [ROWS, OUTPUTS]
    second = tl.zeros([held.shape[0], outputs.shape[0]], COMPUTE)  # [ROWS, OUTPUTS]
    if held.shape[1] <= BLOCK_INPUTS:
        inputs = tl.arange(0, held.shape[1])
        weight = load_weight(weight_ptr, outputs, is_output, inputs, n_inputs)  # [INPUTS, OUTPUTS]
        first = tl.dot(held, weight, first, input_precision=PRECISION, out_dtype=COMPUTE)
        if second_weight_ptr is not None:
            weight = load_weight(second_weight_ptr, outputs, is_output, inputs, n_inputs)
            second = tl.dot(held, weight, second, input_precision=PRECISION, out_dtype=COMPUTE)
    else:
        for start in range(0, n_inputs, BLOCK_INPUTS):
            inputs = start + tl.arange(0, BLOCK_INPUTS)
            if norm_weight_ptr is None:
                x = load_rows(rows, inputs, n_inputs)  # [ROWS, BLOCK_INPUTS]
            else:
                standard = load_standard(rows, mean, inverse_deviation, inputs, n_inputs, COMPUTE)
                x = normed(standard, norm_weight_ptr, norm_bias_ptr, inputs, n_inputs, COMPUTE).to(held.dtype)
            weight = load_weight(weight_ptr, outputs, is_output, inputs, n_inputs)  # [BLOCK_INPUTS, OUTPUTS]
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
    """Return whether the mask has each pair, [ROWS, 1]."""
    pointers = mask_ptr + batch * batch_stride + i * i_stride + j * j_stride
    return (tl.load(pointers, mask=j < n_residues, other=0) != 0)[:, None]
