"""Device code that all attention kernels share: where a program works, loads and stores, who sees whom, dropout.

Some kernels have queries along the rows of a tile of scores, others along its columns. The functions here take the
numbers of queries and of keys in whichever shape broadcasts to the tile.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

NOT_SPECIALISED = (
    "n_sequences", "per_member", "n_heads", "group", "query_rows", "key_rows", "left", "right", "drop_below",
)  # fmt: skip
"""Sizes that a kernel is not compiled anew for: knowing them makes no kernel faster."""

LSE, DELTA = tl.constexpr(0), tl.constexpr(1)
"""The rows of the statistics of a head: log₂ Σ 2^score, and δ = Σ over columns of do · o."""

UNMASKED = tl.constexpr(1)
"""The part of the keys that needs no check, see `parts_of_keys`."""

MASK_AT_ONCE = tl.constexpr(1024)
"""How many elements of a mask a program reads at once to find the keys that are attended to."""

STATISTICS_UNIT = tl.constexpr(4)
"""A row of statistics has room for a multiple of 4 queries: TMA moves units of 16 bytes."""


class HeadRows(NamedTuple):
    """The rows of one sequence in a tensor of heads. `load_tile` and `store_tile` move tiles of them.

    - `source`: a pointer, or a descriptor for TMA.
    - `strides`: from sequence to sequence, head to head, row to row, column to column; in a grid the first is from
      member to member of the batch.
    - `first_row`: where the sequence begins, if sequences are packed; else 0.
    - `n_rows`: how many rows the sequence has.
    """

    source: Any
    strides: Any
    first_row: Any
    n_rows: Any


class Statistics(NamedTuple):
    """lse and δ of the queries of one sequence, in a tensor for all heads and sequences."""

    source: Any
    starts_ptr: Any
    n_heads: Any
    query_rows: Any
    first_row: Any
    n_rows: Any


@triton.jit
def block_of_program(starts_ptr, n_sequences, n_heads, length, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Return the sequence, the head and the first row of this program's block.

    Blocks of one head are neighbours, so the keys that they share stay in the L2 cache. With LAST_FIRST a head's last
    block starts first: under a causal mask it sees the most keys, and a long program that starts last idles the GPU.
    """
    program = tl.program_id(0)
    if starts_ptr is None:
        n_blocks = tl.cdiv(length, BLOCK)
        head = program // n_blocks % n_heads
        sequence = program // n_blocks // n_heads
        block = program % n_blocks
        if LAST_FIRST:
            block = n_blocks - 1 - block
    else:
        # Sequences are packed one after another. The count of blocks treats the n-th sequence as if it began n blocks
        # later. Then no block belongs to two sequences, and the number of blocks does not depend on their lengths.
        n_blocks = length // BLOCK + n_sequences
        head = program // n_blocks
        block = program % n_blocks
        sequence = 0
        beyond = n_sequences
        while beyond - sequence > 1:
            middle = (sequence + beyond) // 2
            if tl.load(starts_ptr + middle).to(tl.int32) // BLOCK + middle <= block:
                sequence = middle
            else:
                beyond = middle
        block -= tl.load(starts_ptr + sequence).to(tl.int32) // BLOCK + sequence
    return sequence, head, block * BLOCK


@triton.jit
def rows_of_sequence(starts_ptr, sequence, length):
    """Return the first row and the number of rows of a sequence, never outside the tensor."""
    first = 0
    if starts_ptr is not None:
        first = tl.minimum(tl.maximum(tl.load(starts_ptr + sequence).to(tl.int32), 0), length)
        beyond = tl.minimum(tl.load(starts_ptr + sequence + 1).to(tl.int32), length)
        length = tl.maximum(beyond - first, 0)
    return first, length


@triton.jit
def place_of(sequence, per_member):
    """Return the index of a sequence in its tensors.

    In a grid these are two numbers: the member of the batch, which has its own bias, and the sequence in that member.
    """
    return (sequence,) if per_member is None else (sequence // per_member, sequence % per_member)


@triton.jit
def head_offset(strides, place, head, first_row):
    """Return how many elements precede row `first_row` of a head of a sequence."""
    wide = tl.cast(place[0], tl.int64) * strides[0] + tl.cast(head, tl.int64) * strides[-3]
    if len(place) == 2:
        wide += tl.cast(place[1], tl.int64) * strides[1]
    return wide + tl.cast(first_row, tl.int64) * strides[-2]


@triton.jit
def head_start(ptr, strides, place, head, first_row):
    """Return a pointer to row `first_row` of a head of a sequence."""
    return ptr + head_offset(strides, place, head, first_row)


@triton.jit
def query_place(starts_ptr, sequence, head, n_heads, query_rows, first_row):
    """Return the index of a head's first query among the queries of all heads, as lse stores them."""
    if starts_ptr is None:
        place = (tl.cast(sequence, tl.int64) * n_heads + head) * query_rows
    else:
        place = tl.cast(head, tl.int64) * query_rows + first_row
    return place


@triton.jit
def statistics_start(statistics, sequence, head, WHICH: tl.constexpr):
    """Return a pointer to the lse or the δ of a head's first query. Each is a row of a whole number of units."""
    rows = tl.cdiv(statistics.query_rows, STATISTICS_UNIT) * STATISTICS_UNIT
    if statistics.starts_ptr is None:
        row = (tl.cast(sequence, tl.int64) * statistics.n_heads + head) * 2 + WHICH
    else:
        row = tl.cast(head, tl.int64) * 2 + WHICH
    return statistics.source + row * rows + statistics.first_row


@triton.jit
def load_statistics(
    statistics, sequence, head, start, WHICH: tl.constexpr, BLOCK: tl.constexpr, WALK: tl.constexpr,
    CHECKED: tl.constexpr,
):  # fmt: skip
    """Load the lse or the δ of BLOCK queries from `start` on. Past the last query there is any number but NaN."""
    rows = start + tl.arange(0, BLOCK)
    if WALK == "described":
        values = statistics.source.load([sequence, head, WHICH, start]).reshape(BLOCK)
    else:
        row_ptr = statistics_start(statistics, sequence, head, WHICH)
        if CHECKED:
            values = tl.load(row_ptr + rows, mask=rows < statistics.n_rows, other=0.0)
        else:
            values = tl.load(row_ptr + rows)
    return values  # [BLOCK]


@triton.jit
def store_statistics(statistics, sequence, head, start, lse, delta, BLOCK: tl.constexpr):
    """Store the lse and the δ of BLOCK queries from `start` on."""
    rows = start + tl.arange(0, BLOCK)  # [BLOCK]
    n_rows = statistics.n_rows
    if statistics.starts_ptr is None:  # TMA may read what fills up the last unit
        n_rows = tl.cdiv(n_rows, STATISTICS_UNIT) * STATISTICS_UNIT
    lse_ptr = statistics_start(statistics, sequence, head, LSE)
    delta_ptr = statistics_start(statistics, sequence, head, DELTA)
    tl.store(lse_ptr + rows, lse, mask=rows < n_rows)
    tl.store(delta_ptr + rows, delta, mask=rows < n_rows)


@triton.jit
def head_rows(
    source, strides, n_heads, first_row, n_rows,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Return the rows of one sequence. A packed sequence gets a descriptor of its own."""
    if WALK == "packed":
        source = tl.make_tensor_descriptor(
            source + tl.cast(first_row, tl.int64) * strides[2], [n_heads, n_rows, HEAD], [strides[1], strides[2], 1],
            [1, BLOCK, BLOCK_HEAD],
        )  # fmt: skip
    return HeadRows(source, strides, first_row, n_rows)


@triton.jit
def tile_pointers(rows, place, head, start, BLOCK: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr):
    """Return pointers to BLOCK rows of a head from row `start` on."""
    INDEX: tl.constexpr = tl.int64 if WALK == "far" else tl.int32
    offsets = tl.arange(0, BLOCK).to(INDEX) * rows.strides[-2]
    columns = tl.arange(0, BLOCK_HEAD).to(INDEX) * rows.strides[-1]
    first = head_offset(rows.strides, place, head, rows.first_row + start)
    if WALK == "aligned":  # divided and multiplied again, they are the same numbers, and the compiler knows a divisor
        UNIT: tl.constexpr = 128 // rows.source.dtype.element_ty.primitive_bitwidth
        offsets = offsets // UNIT * UNIT
        first = first // UNIT * UNIT
    return rows.source + first + (offsets[:, None] + columns[None, :])  # [BLOCK, BLOCK_HEAD]


@triton.jit
def load_tile(
    rows, place, head, start, BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr,
    CHECKED: tl.constexpr,
):  # fmt: skip
    """Load BLOCK rows of a head, with zeros past its HEAD columns and, where CHECKED, past its last row.

    WALK says how to reach them:

    - "near": by pointers. 32 bits count the elements between any two of a tile. "far": the same with 64 bits.
    - "aligned": as "near", where each row begins at a multiple of 16 bytes and the compiler cannot know: of a stride it
      only knows whether 16 divides it. With "near" it would load rows of 72 elements one by one.
    - "described": by TMA, with a descriptor of the whole tensor, which knows where the tensor ends.
    - "packed": by TMA, with a descriptor of one packed sequence.
    """
    in_rows = (start + tl.arange(0, BLOCK) < rows.n_rows)[:, None]
    in_head = (tl.arange(0, BLOCK_HEAD) < HEAD)[None, :]
    if WALK == "described":
        corner = place + (head, start, 0)  # noqa: RUF005  # Triton has no starred elements
        tile = rows.source.load(corner).reshape(BLOCK, BLOCK_HEAD)
    elif WALK == "packed":
        tile = rows.source.load([head, start, 0]).reshape(BLOCK, BLOCK_HEAD)
    else:
        pointers = tile_pointers(rows, place, head, start, BLOCK, BLOCK_HEAD, WALK)
        if CHECKED and HEAD < BLOCK_HEAD:
            tile = tl.load(pointers, mask=in_rows & in_head, other=0.0)
        elif CHECKED:
            tile = tl.load(pointers, mask=in_rows, other=0.0)
        elif HEAD < BLOCK_HEAD:
            tile = tl.load(pointers, mask=in_head, other=0.0)
        else:
            tile = tl.load(pointers)
    return tile  # [BLOCK, BLOCK_HEAD]


@triton.jit
def store_tile(
    rows, place, head, start, values, BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr,
    WALK: tl.constexpr,
):  # fmt: skip
    """Store BLOCK rows of a head where `load_tile` would load them from, but none past the last row."""
    target = rows.source
    if WALK == "described":
        corner = place + (head, start, 0)  # noqa: RUF005  # as above
        target.store(corner, values.to(target.dtype).reshape(target.block_shape))
    elif WALK == "packed":
        target.store([head, start, 0], values.to(target.dtype).reshape(1, BLOCK, BLOCK_HEAD))
    else:
        in_rows = (start + tl.arange(0, BLOCK) < rows.n_rows)[:, None]  # [BLOCK, 1]
        in_head = (tl.arange(0, BLOCK_HEAD) < HEAD)[None, :]  # [1, BLOCK_HEAD]
        pointers = tile_pointers(rows, place, head, start, BLOCK, BLOCK_HEAD, WALK)
        tl.store(pointers, values.to(target.dtype.element_ty), mask=in_rows & in_head)


@triton.jit
def keys_seen(
    first_query, n_queries, n_keys, left, right, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr
):  # fmt: skip
    """Return four edges of the keys that a block of queries sees: begin, all_begin, all_end, end.

    Any query of the block sees keys from begin to end. Every query sees all keys from all_begin to all_end, so these
    need no mask. All but the last are multiples of BLOCK_KEYS, and each is at least the one before.
    """
    shift = n_keys - n_queries
    last_query = tl.minimum(first_query + BLOCK_QUERIES, n_queries) - 1
    begin = 0
    all_begin = 0
    if left is not None:
        begin = tl.maximum(first_query + shift - left, 0) // BLOCK_KEYS * BLOCK_KEYS
        all_begin = tl.cdiv(tl.maximum(last_query + shift - left, 0), BLOCK_KEYS) * BLOCK_KEYS
    all_end = tl.minimum(tl.maximum(first_query + shift + right + 1, 0), n_keys)
    all_end = tl.maximum(all_end // BLOCK_KEYS * BLOCK_KEYS, all_begin)
    end = tl.minimum(tl.maximum(last_query + shift + right + 1, 0), n_keys)
    return begin, all_begin, all_end, end


@triton.jit
def queries_that_see(
    first_key, n_queries, n_keys, left, right, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr
):  # fmt: skip
    """Return four edges of the queries that see a block of keys, as `keys_seen` does for keys."""
    shift = n_keys - n_queries
    last_key = tl.minimum(first_key + BLOCK_KEYS, n_keys) - 1
    begin = tl.maximum(first_key - shift - right, 0) // BLOCK_QUERIES * BLOCK_QUERIES
    all_end = n_queries
    end = n_queries
    all_begin = tl.cdiv(tl.maximum(last_key - shift - right, 0), BLOCK_QUERIES) * BLOCK_QUERIES
    if left is not None:
        end = tl.minimum(tl.maximum(last_key - shift + left + 1, 0), n_queries)
        all_end = tl.minimum(tl.maximum(first_key - shift + left + 1, 0), n_queries)
    all_end = tl.maximum(all_end // BLOCK_QUERIES * BLOCK_QUERIES, all_begin)
    return begin, all_begin, all_end, end


@triton.jit
def is_seen(queries, keys, n_queries, n_keys, left, right):
    """Return which pairs of a query and a key exist and lie within the window."""
    seen = (keys < n_keys) & (queries < n_queries) & (keys <= queries + (n_keys - n_queries) + right)
    if left is not None:
        seen = seen & (keys >= queries + (n_keys - n_queries) - left)
    return seen


@triton.jit
def is_attended(mask_ptr, mask_strides, place, key, columns, n_keys):
    """Return which keys the mask lets through, for every query alike."""
    start = tl.cast(place[0], tl.int64) * mask_strides[0] + tl.cast(key, tl.int64) * mask_strides[-1]
    if len(place) == 2:
        start += tl.cast(place[1], tl.int64) * mask_strides[1]
    return tl.load(mask_ptr + start + columns * mask_strides[-1], mask=key + columns < n_keys, other=0) != 0


@triton.jit
def parts_of_keys(edges, mask_ptr, mask_strides, place, n_keys, BLOCK_KEYS: tl.constexpr, first_key=0):
    """Return where each part of the keys begins, and where it ends, from the edges of `keys_seen`.

    The mask is read from `first_key` to `n_keys`: a program with one split of the keys reads no more.

    Parts 0 and 2 are to be checked against the window, the ends of the sequences and the mask. Part 1, UNMASKED, needs
    no check. Part 3 needs only the mask, and is for masks with a hole: it takes the keys of part 1.
    Padding before or after a sequence is in no part.
    """
    begin, all_begin, all_end, end = edges
    unmasked_end = all_end
    masked_end = all_begin
    if mask_ptr is not None:
        first = n_keys
        last = 0
        n_attended = 0
        for start in tl.range(first_key, n_keys, MASK_AT_ONCE):
            columns = tl.arange(0, MASK_AT_ONCE)
            attended = is_attended(mask_ptr, mask_strides, place, start, columns, n_keys)  # [MASK_AT_ONCE]
            first = tl.minimum(first, tl.min(tl.where(attended, start + columns, n_keys), axis=0))
            last = tl.maximum(last, tl.max(tl.where(attended, start + columns + 1, 0), axis=0))
            n_attended += tl.sum(attended.to(tl.int32), axis=0)
        begin = tl.maximum(begin, first // BLOCK_KEYS * BLOCK_KEYS)
        all_begin = tl.maximum(all_begin, tl.cdiv(first, BLOCK_KEYS) * BLOCK_KEYS)
        all_end = tl.maximum(tl.minimum(all_end, last // BLOCK_KEYS * BLOCK_KEYS), all_begin)
        has_hole = n_attended < last - first
        unmasked_end = tl.where(has_hole, all_begin, all_end)
        masked_end = tl.where(has_hole, all_end, all_begin)
        end = tl.minimum(end, last)
    return (begin, all_begin, all_end, all_begin), (all_begin, unmasked_end, end, masked_end)


@triton.jit
def scrambled(x):
    """Return a 32-bit hash of x; see `reference.scrambled`."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def dropout_stream(seed_ptr, head):
    """Return the seed of one head's dropout; `head` counts over all sequences."""
    stream = tl.cast(head, tl.uint32)
    if seed_ptr is not None:
        seed = tl.load(seed_ptr)
        stream = scrambled(scrambled(seed.to(tl.uint32)) ^ scrambled((seed >> 32).to(tl.uint32) + stream))
    return stream


@triton.jit
def is_kept(stream, queries, keys, drop_below):
    """Return which weights dropout keeps; see `reference.kept_by_dropout`."""
    rows = scrambled(stream + queries.to(tl.uint32))
    columns = scrambled(~stream - keys.to(tl.uint32))
    return (scrambled(rows ^ columns) >> 1).to(tl.int32) >= drop_below
