"""Device code that the Hopper kernels share: tiles of pairs, the ring of TMA loads, and staged TMA stores.

The portable kernels (read those first) take one tile of pairs a program, load the weights for each tile, and load,
norm, multiply and store one after the other. A Hopper kernel is persistent: a CTA holds all weights in shared memory.
Up to three warpgroups share the weights, and each walks over its own tiles of 64 pairs. A warpgroup prefetches
its tiles by TMA into its own ring and waits for no other warpgroup: while one is elementwise, the products of another
run. All tiles are 64 × 64, so rows of 128 channels are two halves.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tilesmith.toolchain.gluon import fetch

N = gl.constexpr(64)  # rows and columns of a tile
WIDTH = gl.constexpr(128)  # channels, and hidden channels
TILE_BYTES = gl.constexpr(64 * 64 * 2)
NOT_SPECIALISED = ["n_residues", "n_tiles", "mask_batch_stride", "mask_i_stride", "mask_j_stride"]


@gluon.jit
def first_tile(group):
    """Return a warpgroup's first tile. The first warpgroups of all CTAs come first: in the last round, each CTA has one
    tile before any has two."""
    return gl.program_id(0) + group * gl.num_programs(0)


@gluon.jit
def pairs_of_tile(tile, n_residues):
    """Return the index in the batch, i, and the first of 64 j."""
    blocks = (n_residues + N - 1) // N
    line = tile // blocks
    return line // n_residues, line % n_residues, tile % blocks * N


@gluon.jit
def later(place, stride, n_residues):
    """Return the place of a tile that comes later by the number of the tile at `stride`.

    An addition with carries: the divisions in `pairs_of_tile` would take about 4 % of a projection's instructions.
    """
    batch, i, j = place
    end = (n_residues + N - 1) // N * N
    j += stride[2]
    i += stride[1] + (j >= end).to(gl.int32)
    batch += stride[0] + (i >= n_residues).to(gl.int32)
    return batch, gl.where(i >= n_residues, i - n_residues, i), gl.where(j >= end, j - end, j)


@gluon.jit
def make_barriers(COUNT: gl.constexpr):
    """Return an mbarrier for each slot of the rings. It completes when TMA has filled the slot."""
    ready = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    return ready


@gluon.jit
def prefetch(descriptor, corner, ring, ready, number, is_needed, FIRST: gl.constexpr, SLOTS: gl.constexpr):
    """Start the TMA load of tile `number`, if it is needed, into a ring: SLOTS slots from FIRST on."""
    slot = FIRST + number % SLOTS
    mbarrier.expect(ready.index(slot), TILE_BYTES, pred=is_needed)
    fetch(descriptor, corner, ready.index(slot), ring.index(slot), pred=is_needed)


@gluon.jit
def prefetch_pairs(descriptor, place, half, ring, ready, number, is_needed, FIRST: gl.constexpr, SLOTS: gl.constexpr):
    """Prefetch half the channels of a tile of pairs: [pairs, channels]."""
    batch, i, j = place
    prefetch(descriptor, [batch, i, j, half * N], ring, ready, number, is_needed, FIRST, SLOTS)


@gluon.jit
def prefetch_matrices(
    descriptor, place, half, ring, ready, number, is_needed, FIRST: gl.constexpr, SLOTS: gl.constexpr
):  # fmt: skip
    """Prefetch half the channels of a tile of pairs from a matrix for each channel: [channels, pairs]."""
    batch, i, j = place
    prefetch(descriptor, [batch, i, half * N, j], ring, ready, number, is_needed, FIRST, SLOTS)


@gluon.jit
def prefetch_first_tile(x, z, place, ring, ready, is_needed, FIRST: gl.constexpr, SLOTS: gl.constexpr):
    """Prefetch a warpgroup's first tile, both halves of x and of z, into slots 0 to 3."""
    for half in gl.static_range(2):
        prefetch_matrices(x, place, half, ring, ready, half, is_needed, FIRST, SLOTS)
        prefetch_pairs(z, place, half, ring, ready, 2 + half, is_needed, FIRST, SLOTS)


@gluon.jit
def wait_for_tile(ring, ready, number, FIRST: gl.constexpr, SLOTS: gl.constexpr):
    """Wait for the TMA load of tile `number` and return the tile in shared memory, [64, 64]."""
    slot = FIRST + number % SLOTS
    mbarrier.wait(ready.index(slot), number // SLOTS % 2)
    return ring.index(slot).reshape([N, N])


@gluon.jit
def stage(value, place, PENDING: gl.constexpr = 1):
    """Copy a tile to shared memory for a TMA store. PENDING earlier TMA stores may still be reading other places."""
    tma.store_wait(PENDING)
    place.reshape([N, N]).store(value)
    fence_async_shared()


@gluon.jit
def stage_transposed(value, place):
    """Copy the transpose of a tile to shared memory for a TMA store."""
    tma.store_wait(1)
    place.reshape([N, N]).permute([1, 0]).store(value)
    fence_async_shared()
