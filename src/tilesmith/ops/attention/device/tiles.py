"""What all kernels of attention share on the device: where a program works, who sees whom, dropout.

Scores appear with queries along the rows of a tile in some kernels and along its columns in others. The functions here
take the numbers of queries and of keys in whichever shape broadcasts to the tile.
"""

import triton
import triton.language as tl

NOT_SPECIALISED = (
    "n_sequences", "per_member", "n_heads", "group", "query_rows", "key_rows", "left", "right", "drop_below",
)  # fmt: skip
"""Sizes that a kernel gains nothing from knowing, and that must not compile anew for each."""

LSE, DELTA = tl.constexpr(0), tl.constexpr(1)
"""What the kernels of the backward tell each other about each query."""

STATISTICS_UNIT = tl.constexpr(4)
"""There is room for a multiple of this many, so that the copy engine can fetch them: it wants units of 16 bytes."""


@triton.jit
def block_of_program(starts_ptr, n_sequences, n_heads, length, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """The sequence, the head and the first row of the block that this program takes.

    Blocks of one head are neighbours: what they share stays in the L2 cache. With LAST_FIRST a head's last block starts
    first: it has the most keys to see where queries look back only, and no long one must be left for the end.
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
        # Sequences are packed one after another. Counted as if the n-th began n blocks later than it does, no block
        # belongs to two of them, and the number of blocks does not depend on their lengths.
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
    """The first row and the number of rows of a sequence, never outside the tensor."""
    first = 0
    if starts_ptr is not None:
        first = tl.minimum(tl.maximum(tl.load(starts_ptr + sequence).to(tl.int32), 0), length)
        beyond = tl.minimum(tl.load(starts_ptr + sequence + 1).to(tl.int32), length)
        length = tl.maximum(beyond - first, 0)
    return first, length


@triton.jit
def place_of(sequence, per_member):
    """Where in its tensors a sequence lies: at its number; in a grid at that of its member of the batch, which has its
    own bias, and at its own among the sequences of that."""
    return (sequence,) if per_member is None else (sequence // per_member, sequence % per_member)


@triton.jit
def head_start(ptr, strides, place, head, first_row):
    """Where the rows of a head of a sequence begin, from that row on."""
    wide = tl.cast(place[0], tl.int64) * strides[0] + tl.cast(head, tl.int64) * strides[-3]
    if len(place) == 2:
        wide += tl.cast(place[1], tl.int64) * strides[1]
    return ptr + wide + tl.cast(first_row, tl.int64) * strides[-2]


@triton.jit
def query_place(starts_ptr, sequence, head, n_heads, query_rows, first_row):
    """The number of a head's first query among the queries of all heads, which is its place in lse."""
    if starts_ptr is None:
        place = (tl.cast(sequence, tl.int64) * n_heads + head) * query_rows
    else:
        place = tl.cast(head, tl.int64) * query_rows + first_row
    return place


@triton.jit
def statistics_start(ptr, starts_ptr, sequence, head, n_heads, query_rows, first_row, WHICH: tl.constexpr):
    """Where the lse or the δ of a head's queries begin: a row of each per head, of a whole number of units."""
    rows = tl.cdiv(query_rows, STATISTICS_UNIT) * STATISTICS_UNIT
    if starts_ptr is None:
        row = (tl.cast(sequence, tl.int64) * n_heads + head) * 2 + WHICH
    else:
        row = tl.cast(head, tl.int64) * 2 + WHICH
    return ptr + row * rows + first_row


@triton.jit
def load_statistics(
    source, starts_ptr, sequence, head, n_heads, query_rows, first_row, start, n_rows,
    WHICH: tl.constexpr, BLOCK: tl.constexpr, WALK: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Those of BLOCK queries from `start` on; anything but NaN for those that there are not."""
    rows = start + tl.arange(0, BLOCK)
    if WALK == "described":
        values = source.load([sequence, head, WHICH, start]).reshape(BLOCK)
    else:
        row_ptr = statistics_start(source, starts_ptr, sequence, head, n_heads, query_rows, first_row, WHICH)
        values = tl.load(row_ptr + rows, mask=rows < n_rows, other=0.0) if CHECKED else tl.load(row_ptr + rows)
    return values


@triton.jit
def store_statistics(
    ptr, starts_ptr, sequence, head, n_heads, query_rows, first_row, start, n_rows, lse, delta, BLOCK: tl.constexpr
):  # fmt: skip
    rows = start + tl.arange(0, BLOCK)
    if starts_ptr is None:  # what fills up the last unit may be fetched with it
        n_rows = tl.cdiv(n_rows, STATISTICS_UNIT) * STATISTICS_UNIT
    lse_ptr = statistics_start(ptr, starts_ptr, sequence, head, n_heads, query_rows, first_row, LSE)
    delta_ptr = statistics_start(ptr, starts_ptr, sequence, head, n_heads, query_rows, first_row, DELTA)
    tl.store(lse_ptr + rows, lse, mask=rows < n_rows)
    tl.store(delta_ptr + rows, delta, mask=rows < n_rows)


@triton.jit
def tile_pointers(
    ptr, strides, place, head, first_row, start,
    BLOCK: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """BLOCK rows of a head from row `start` on."""
    INDEX: tl.constexpr = tl.int32 if WALK == "near" else tl.int64
    rows = tl.arange(0, BLOCK).to(INDEX) * strides[-2]
    columns = tl.arange(0, BLOCK_HEAD).to(INDEX) * strides[-1]
    return head_start(ptr, strides, place, head, first_row + start) + (rows[:, None] + columns[None, :])


@triton.jit
def of_sequence(
    source, strides, n_heads, first_row, n_rows,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """What `load_tile` loads the tiles of one sequence from: for a packed one a descriptor of its own."""
    if WALK == "packed":
        source = tl.make_tensor_descriptor(
            source + tl.cast(first_row, tl.int64) * strides[2], [n_heads, n_rows, HEAD], [strides[1], strides[2], 1],
            [1, BLOCK, BLOCK_HEAD],
        )  # fmt: skip
    return source


@triton.jit
def load_tile(
    source, strides, place, head, first_row, start, n_rows,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """BLOCK rows of a head, with zeros beyond its HEAD columns and, where CHECKED, beyond its last row.

    WALK is how they are reached. "near": the source is a pointer, and 32 bits count the elements between any two of a
    tile; "far": it takes 64. "described": the source is a descriptor of the whole tensor, which the copy engine walks
    and which knows where that ends; "packed": of one of the packed sequences.
    """
    in_rows = (start + tl.arange(0, BLOCK) < n_rows)[:, None]
    in_head = (tl.arange(0, BLOCK_HEAD) < HEAD)[None, :]
    if WALK == "described":
        corner = place + (head, start, 0)  # noqa: RUF005  # Triton has no starred elements
        tile = source.load(corner).reshape(BLOCK, BLOCK_HEAD)
    elif WALK == "packed":
        tile = source.load([head, start, 0]).reshape(BLOCK, BLOCK_HEAD)
    else:
        pointers = tile_pointers(source, strides, place, head, first_row, start, BLOCK, BLOCK_HEAD, WALK)
        if CHECKED and HEAD < BLOCK_HEAD:
            tile = tl.load(pointers, mask=in_rows & in_head, other=0.0)
        elif CHECKED:
            tile = tl.load(pointers, mask=in_rows, other=0.0)
        elif HEAD < BLOCK_HEAD:
            tile = tl.load(pointers, mask=in_head, other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def store_tile(
    target, strides, place, head, first_row, start, n_rows, values,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """The rows of a head that there are, to where `load_tile` would load them from."""
    if WALK == "described":
        corner = place + (head, start, 0)  # noqa: RUF005  # as above
        target.store(corner, values.to(target.dtype).reshape(target.block_shape))
    elif WALK == "packed":
        target.store([head, start, 0], values.to(target.dtype).reshape(1, BLOCK, BLOCK_HEAD))
    else:
        in_rows = (start + tl.arange(0, BLOCK) < n_rows)[:, None]
        in_head = (tl.arange(0, BLOCK_HEAD) < HEAD)[None, :]
        pointers = tile_pointers(target, strides, place, head, first_row, start, BLOCK, BLOCK_HEAD, WALK)
        tl.store(pointers, values.to(target.dtype.element_ty), mask=in_rows & in_head)


@triton.jit
def keys_seen(
    first_query, n_queries, n_keys, left, right, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr
):  # fmt: skip
    """The keys that a block of queries sees: from, seen by all from, seen by all to, to. All but the last are multiples
    of BLOCK_KEYS, and each is at least the one before."""
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
    """The queries that see a block of keys: from, seeing all from, seeing all to, to; as `keys_seen`."""
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
    seen = (keys < n_keys) & (queries < n_queries) & (keys <= queries + (n_keys - n_queries) + right)
    if left is not None:
        seen = seen & (keys >= queries + (n_keys - n_queries) - left)
    return seen


@triton.jit
def is_attended(mask_ptr, mask_strides, place, key, columns, n_keys):
    """Which keys the mask lets through, for every query alike."""
    start = tl.cast(place[0], tl.int64) * mask_strides[0] + tl.cast(key, tl.int64) * mask_strides[-1]
    if len(place) == 2:
        start += tl.cast(place[1], tl.int64) * mask_strides[1]
    return tl.load(mask_ptr + start + columns * mask_strides[-1], mask=key + columns < n_keys, other=0) != 0


@triton.jit
def scrambled(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def dropout_stream(seed_ptr, head):
    """What tells one head's dropped weights from another's; `head` counts over all sequences."""
    stream = tl.cast(head, tl.uint32)
    if seed_ptr is not None:
        seed = tl.load(seed_ptr)
        stream = scrambled(scrambled(seed.to(tl.uint32)) ^ scrambled((seed >> 32).to(tl.uint32) + stream))
    return stream


@triton.jit
def is_kept(stream, queries, keys, drop_below):
    """Which weights dropout leaves; see `reference.kept_by_dropout`."""
    rows = scrambled(stream + queries.to(tl.uint32))
    columns = scrambled(~stream - keys.to(tl.uint32))
    return (scrambled(rows ^ columns) >> 1).to(tl.int32) >= drop_below
