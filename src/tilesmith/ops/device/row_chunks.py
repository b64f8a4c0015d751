"""One row in registers, as a tuple of chunks: a chunk is one 16-byte vector for every thread of the program.

A tile of a power of two wastes up to half of its lanes: 5120 columns take 8192. Chunks waste less than one chunk. The
row may start at any address: `aligned_rows.py` cuts off its edges, and one lane for each thread holds them.

On an H200 in bf16, share of the copy limit before and with chunks: layer_norm 13107×5120 forward 0.67, 0.93, backward
0.68, 0.94; 29114×2305 forward 0.41, 0.87; softmax 3391×10240 forward 0.62, 0.88; 24851×2306 backward 0.87, 1.00.
"""

from collections.abc import Sequence

import triton
import triton.language as tl

from tilesmith.ops.device.aligned_rows import cut_rows
from tilesmith.ops.runtime.layout import Rows
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.toolchain import interpreter

VECTOR_BYTES = 16  # the widest access of a thread
WARP = 32  # threads that configurations count a warp as


def chunk_size(warps: int, element_bytes: int) -> int:
    """Return how many elements one vector for every thread holds."""
    return warps * WARP * (VECTOR_BYTES // element_bytes)


def middle_of(columns: int, element_bytes: int) -> int:
    """Return the most columns that lie between the first and the last aligned address of a row."""
    vector = VECTOR_BYTES // element_bytes
    return columns // vector * vector


def chunks_of(columns: int, chunk: int) -> int:
    """Return how many chunks cover so many columns."""
    return -(-columns // chunk)


def fewest_warps(columns: int, element_bytes: int, most_elements: int, most_warps: int) -> int | None:
    """Return the fewest warps whose threads hold at most `most_elements` each; None where `most_warps` hold more."""
    vector, warps = VECTOR_BYTES // element_bytes, 1
    while chunks_of(columns, chunk_size(warps, element_bytes)) * vector > most_elements:
        warps *= 2
        if warps > most_warps:
            return None
    return warps


def has_edge_lanes(chunk: int, element_bytes: int) -> bool:
    """Whether a chunk has a lane for each element that two edges may have; a chunk of 32 threads or more always has."""
    return chunk >= 2 * (VECTOR_BYTES // element_bytes) ** 2


def has_edges(walk: Rows, vector: int, tensors: int | None = None) -> bool:
    """Whether some row of the first so many tensors of the walk, or of all, starts or ends inside a vector.

    Where the compiler must find out by itself that no row does, `vector` is 16: it knows multiples of 16 alone.
    """
    strides = [stride for strides in walk.strides[:tensors] for stride in strides]
    return walk.columns % vector != 0 or any(stride % vector != 0 for stride in strides)


def can_be_cut(walk: Rows, operands: Sequence[Operand], tensors: int | None = None) -> bool:
    """Whether the place of a row takes a single stride, and the rows of these tensors of the walk are aligned alike."""
    if walk.nested or any(stride != 1 for stride in walk.column_strides[:tensors]):
        return False
    vector = VECTOR_BYTES // operands[0].element_bytes
    same = all(one.element_bytes == operands[0].element_bytes and one.aligned for one in operands)
    return same and all((strides[0] - walk.strides[0][0]) % vector == 0 for strides in walk.strides[:tensors])


def can_pack(plan: Plan, element_bytes: int) -> bool:
    """Whether `packed_again` can be used: 16-bit elements, an NVIDIA GPU, no interpreter."""
    is_compiled = plan.device.type != "cpu" and not interpreter.is_interpreting()
    return element_bytes == 2 and is_compiled and plan.architecture.target.startswith("cuda")


@triton.jit
def cut_row(row_ptr, n_columns, VECTOR: tl.constexpr, EDGES: tl.constexpr, TOLD: tl.constexpr):
    """Return `cut_rows` of one row. With TOLD the compiler learns that a row without edges is whole vectors."""
    lead, length = cut_rows(row_ptr, n_columns, VECTOR, EDGES)
    if TOLD:
        length = length // VECTOR * VECTOR
    return lead, length


@triton.jit
def chunk_columns(place: tl.constexpr, CHUNK: tl.constexpr):
    """Return the columns of one chunk."""
    return place * CHUNK + tl.arange(0, CHUNK)  # [CHUNK]


@triton.jit
def chunk_pointers(row_ptr, place: tl.constexpr, CHUNK: tl.constexpr):
    """Return pointers to one chunk of a row that starts at a whole vector."""
    return tl.multiple_of(row_ptr + chunk_columns(place, CHUNK), [16])  # [CHUNK]


@triton.jit
def load_chunks(row_ptr, length, OTHER: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """Return a row as CHUNKS tiles of [CHUNK], with OTHER from `length` on."""
    chunks = ()
    for place in tl.static_range(CHUNKS):
        mask = chunk_columns(place, CHUNK) < length
        chunks = chunks + (tl.load(chunk_pointers(row_ptr, place, CHUNK), mask=mask, other=OTHER),)  # type: ignore[assignment]  # noqa: RUF005  # Triton does not unpack
    return chunks


@triton.jit
def load_parameter(pointer, stride, length, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """Return a parameter as chunks; where it does not start at a whole vector, its loads are narrow."""
    chunks = ()
    for place in tl.static_range(CHUNKS):
        columns = chunk_columns(place, CHUNK)
        loaded = tl.load(pointer + columns * stride, mask=columns < length, other=0.0, eviction_policy="evict_last")
        chunks = chunks + (loaded,)  # type: ignore[assignment]  # noqa: RUF005  # Triton does not unpack
    return chunks


@triton.jit
def packed_again(chunks, PACKED: tl.constexpr):
    """Return the chunks such that the compiler keeps pairs of 16-bit elements in one register from here on.

    The compiler would convert every element once and keep the wider result. It cannot look through this instruction, so
    it converts again where the chunks are used. Only for NVIDIA GPUs, and not in the interpreter.
    """
    if PACKED and chunks[0].dtype.primitive_bitwidth == 16:
        kept = ()
        for place in tl.static_range(len(chunks)):
            pair = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [chunks[place]], dtype=chunks[place].dtype, is_pure=False, pack=2
            )
            kept = kept + (pair,)  # type: ignore[assignment]  # noqa: RUF005  # Triton does not unpack
    else:
        kept = chunks
    return kept


@triton.jit
def edge_lanes(lead, length, n_columns, VECTOR: tl.constexpr, CHUNK: tl.constexpr):
    """Return the columns of a row's two edges, one lane a thread, and which of them there are."""
    lanes = tl.arange(0, CHUNK // VECTOR)
    columns = tl.where(lanes < VECTOR, lanes, lead + length + lanes - VECTOR)
    return columns, tl.where(lanes < VECTOR, lanes < lead, columns < n_columns)  # [CHUNK // VECTOR] each


@triton.jit
def lane_sums(tile, edges, VECTOR: tl.constexpr, EDGES: tl.constexpr):
    """Return one sum for each thread, of its elements of a chunk and its edge: no thread waits for another."""
    sums = tl.sum(tl.reshape(tile, [tile.shape[0] // VECTOR, VECTOR]), axis=1)
    if EDGES:
        sums += edges
    return sums  # [CHUNK // VECTOR]


@triton.jit
def add_pairs(first, second, other_first, other_second):
    """Combine two pairs in a reduction."""
    return first + other_first, second + other_second


@triton.jit
def two_sums(first, second):
    """Return the sums of two vectors by one reduction."""
    return tl.reduce((first, second), 0, add_pairs)
