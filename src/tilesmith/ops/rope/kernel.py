"""The kernel that rotates q and k, forward and backward."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class HeadTensor(NamedTuple):
    """q or k, and its rotated copy; strides of batch, head, position and element."""

    x_ptr: Any
    y_ptr: Any
    x_strides: Any
    y_strides: Any
    n_heads: Any


class Tables(NamedTuple):
    """cos and sin: pointers to a row for each of the tile's rows, and the strides of their columns."""

    cos_rows: Any  # [ROWS]
    sin_rows: Any  # [ROWS]
    cos_stride: Any
    sin_stride: Any


class HeadRows(NamedTuple):
    """The rows of a tile: a head and a position of one sequence each."""

    batch: Any
    heads: Any  # [ROWS]
    positions: Any  # [ROWS]
    mask: Any  # [ROWS]


@triton.jit
def load_pairs(
    rows, stride, n_pairs, in_rows, INTERLEAVED: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """Return the first and the second elements of all pairs of some rows; `rows` points to the rows' first elements."""
    if INTERLEAVED:
        elements = tl.arange(0, 2 * PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (elements < 2 * n_pairs)[None, :]
        both = tl.load(rows[:, None] + (elements * stride)[None, :], mask=mask, other=0.0)  # [ROWS, 2 · PAIRS]
        first, second = tl.split(tl.reshape(both, [ROWS, PAIRS, 2]))
    else:
        pairs = tl.arange(0, PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (pairs < n_pairs)[None, :]
        first = tl.load(rows[:, None] + (pairs * stride)[None, :], mask=mask, other=0.0)
        second = tl.load(rows[:, None] + ((pairs + n_pairs) * stride)[None, :], mask=mask, other=0.0)
    return first, second  # [ROWS, PAIRS] each


@triton.jit
def store_pairs(rows, stride, n_pairs, in_rows, first, second, INTERLEAVED: tl.constexpr, PAIRS: tl.constexpr):
    """Store the first and the second elements of all pairs of some rows."""
    first, second = first.to(rows.dtype.element_ty), second.to(rows.dtype.element_ty)
    if INTERLEAVED:
        elements = tl.arange(0, 2 * PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (elements < 2 * n_pairs)[None, :]  # [ROWS, 2 · PAIRS]
        tl.store(rows[:, None] + (elements * stride)[None, :], tl.interleave(first, second), mask=mask)
    else:
        pairs = tl.arange(0, PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (pairs < n_pairs)[None, :]  # [ROWS, PAIRS]
        tl.store(rows[:, None] + (pairs * stride)[None, :], first, mask=mask)
        tl.store(rows[:, None] + ((pairs + n_pairs) * stride)[None, :], second, mask=mask)


@triton.jit
def load_table(
    rows, stride, n_pairs, in_rows,
    COMPACT: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Return the factors of first and second elements. A COMPACT table has one number for both elements of a pair."""
    if COMPACT:
        pairs = tl.arange(0, PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (pairs < n_pairs)[None, :]
        first = tl.load(rows[:, None] + (pairs * stride)[None, :], mask=mask, other=0.0)
        second = first
    else:
        first, second = load_pairs(rows, stride, n_pairs, in_rows, INTERLEAVED, ROWS, PAIRS)
    return first.to(COMPUTE), second.to(COMPUTE)  # [ROWS, PAIRS] each


@triton.jit
def load_rest(rows, stride, n_pairs, n_rest, in_rows, REST: tl.constexpr):
    """Return the elements of some rows that are not rotated."""
    elements = tl.arange(0, REST).to(tl.int64)
    mask = in_rows[:, None] & (elements < n_rest)[None, :]
    return tl.load(rows[:, None] + ((elements + 2 * n_pairs) * stride)[None, :], mask=mask)  # [ROWS, REST]


@triton.jit
def store_rest(rows, stride, n_pairs, n_rest, in_rows, rest, REST: tl.constexpr):
    """Store the elements of some rows that are not rotated."""
    elements = tl.arange(0, REST).to(tl.int64)
    mask = in_rows[:, None] & (elements < n_rest)[None, :]  # [ROWS, REST]
    tl.store(rows[:, None] + ((elements + 2 * n_pairs) * stride)[None, :], rest, mask=mask)


@triton.jit
def rotate_heads(
    tensor, tables, at, n_pairs, n_rest, inverse,
    LAYOUT: tl.constexpr, TILE: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Rotate the rows at `at`, and the same positions of the next HEADS heads, TURNS times in all. Copy the rest.

    LAYOUT is (COMPACT, INTERLEAVED), TILE is (HEADS, TURNS, PAIRS, REST).
    """
    COMPACT: tl.constexpr = LAYOUT[0]
    INTERLEAVED: tl.constexpr = LAYOUT[1]
    HEADS: tl.constexpr = TILE[0]
    TURNS: tl.constexpr = TILE[1]
    PAIRS: tl.constexpr = TILE[2]
    REST: tl.constexpr = TILE[3]
    ROWS: tl.constexpr = at.heads.shape[0]
    x_strides, y_strides = tensor.x_strides, tensor.y_strides
    x_rows = tensor.x_ptr + at.batch * x_strides[0] + at.heads * x_strides[1] + at.positions * x_strides[2]  # [ROWS]
    y_rows = tensor.y_ptr + at.batch * y_strides[0] + at.heads * y_strides[1] + at.positions * y_strides[2]  # [ROWS]
    loaded, rests = (), ()
    for turn in tl.static_range(TURNS):
        mask = at.mask & (at.heads + turn * HEADS < tensor.n_heads)
        x_head = x_rows + tl.full([], turn * HEADS, tl.int64) * x_strides[1]
        first, second = load_pairs(x_head, x_strides[3], n_pairs, mask, INTERLEAVED, ROWS, PAIRS)
        loaded += ((first, second),)  # type: ignore[assignment]  # traced: the tuple grows with every turn
        if REST > 0:
            rests += (load_rest(x_head, x_strides[3], n_pairs, n_rest, mask, REST),)  # type: ignore[assignment]  # likewise
    # After the loads of the heads, so that no program waits for the tables before it has issued these loads.
    cos = load_table(
        tables.cos_rows, tables.cos_stride, n_pairs, at.mask, COMPACT, INTERLEAVED, COMPUTE, ROWS, PAIRS
    )  # fmt: skip
    sin = load_table(
        tables.sin_rows, tables.sin_stride, n_pairs, at.mask, COMPACT, INTERLEAVED, COMPUTE, ROWS, PAIRS
    )  # fmt: skip
    # The inverse rotation is the transpose. Chosen at run time, so that forward and backward share compiled code.
    sin = tl.where(inverse != 0, -sin[1], sin[0]), tl.where(inverse != 0, -sin[0], sin[1])
    for turn in tl.static_range(TURNS):
        mask = at.mask & (at.heads + turn * HEADS < tensor.n_heads)
        y_head = y_rows + tl.full([], turn * HEADS, tl.int64) * y_strides[1]
        first, second = loaded[turn][0].to(COMPUTE), loaded[turn][1].to(COMPUTE)  # [ROWS, PAIRS] each
        rotated_first = first * cos[0] - second * sin[0]  # type: ignore[unreachable]  # likewise
        rotated_second = second * cos[1] + first * sin[1]
        store_pairs(y_head, y_strides[3], n_pairs, mask, rotated_first, rotated_second, INTERLEAVED, PAIRS)
        if REST > 0:
            store_rest(y_head, y_strides[3], n_pairs, n_rest, mask, rests[turn], REST)


@triton.jit(do_not_specialize=["n_positions", "inverse"])
def rope_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, rotated_q_ptr, rotated_k_ptr,
    q_strides, k_strides, cos_strides, sin_strides, rotated_q_strides, rotated_k_strides,
    n_positions, q_heads, k_heads, n_pairs, n_rest, inverse,
    COMPACT: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTE: tl.constexpr,
    HEADS: tl.constexpr, TURNS: tl.constexpr, POSITIONS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """TURNS · HEADS heads of q or of k at POSITIONS positions. Programs of the same positions follow each other."""
    ROWS: tl.constexpr = HEADS * POSITIONS
    q_chunks = tl.cdiv(q_heads, TURNS * HEADS)
    chunks = q_chunks + tl.cdiv(k_heads, TURNS * HEADS)
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    block = tl.program_id(0) // chunks
    position_blocks = tl.cdiv(n_positions, POSITIONS)
    batch = (block // position_blocks).to(tl.int64)
    heads = tl.arange(0, ROWS) % HEADS  # [ROWS]
    positions = (block % position_blocks * POSITIONS + tl.arange(0, ROWS) // HEADS).to(tl.int64)
    in_rows = positions < n_positions  # [ROWS]
    cos_rows = cos_ptr + batch * cos_strides[0] + positions * cos_strides[1]  # [ROWS]
    sin_rows = sin_ptr + batch * sin_strides[0] + positions * sin_strides[1]
    tables = Tables(cos_rows, sin_rows, cos_strides[2], sin_strides[2])
    LAYOUT: tl.constexpr = (COMPACT, INTERLEAVED)
    TILE: tl.constexpr = (HEADS, TURNS, PAIRS, REST)
    if chunk < q_chunks:
        q = HeadTensor(q_ptr, rotated_q_ptr, q_strides, rotated_q_strides, q_heads)
        rows = HeadRows(batch, chunk * TURNS * HEADS + heads, positions, in_rows)
        rotate_heads(q, tables, rows, n_pairs, n_rest, inverse, LAYOUT, TILE, COMPUTE)
    else:
        k = HeadTensor(k_ptr, rotated_k_ptr, k_strides, rotated_k_strides, k_heads)
        rows = HeadRows(batch, (chunk - q_chunks) * TURNS * HEADS + heads, positions, in_rows)
        rotate_heads(k, tables, rows, n_pairs, n_rest, inverse, LAYOUT, TILE, COMPUTE)
