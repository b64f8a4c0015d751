"""The forward's two Hopper kernels: same computation as `fused/forward.py` (read that first); `ring.py` says how.

On an H200 they take 27 and 21 µs at n = 256, the portable kernels 37 and 38; at n = 512 they take 86 and 66 µs, the
portable kernels 136 and 143.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.triangle_multiply.hopper.launch import (
    OneGroup,
    ThreeGroups,
    arguments,
    grid,
    suits_hopper,
    takes_hopper,
    tiles_of_matrices,
    tiles_of_pairs,
)
from tilesmith.ops.triangle_multiply.hopper.layers import (
    fill_shared_memory,
    mask_bits,
    masked,
    normed,
    sigmoid,
    standardise,
    start_projection,
)
from tilesmith.ops.triangle_multiply.hopper.ring import (
    NOT_SPECIALISED,
    N,
    first_tile,
    later,
    pairs_of_tile,
    prefetch_first_tile,
    prefetch_matrices,
    prefetch_pairs,
    stage,
    stage_transposed,
    wait_for_tile,
)
from tilesmith.ops.triangle_multiply.problem import Update
from tilesmith.toolchain.gluon import put
from tilesmith.toolchain.versions import copies_left_operands

# Warpgroups, slots in the ring of each, and registers a thread of all warpgroups but the first.
PROJECT_GROUPS, PROJECT_SLOTS, PROJECT_REGISTERS = gl.constexpr(3), gl.constexpr(2), gl.constexpr(160)
OUTPUT_SLOTS = gl.constexpr(4)


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_project_hopper_kernel(
    z, a, b, projection_weight, gate_weight, projection_bias_ptr, gate_bias_ptr, norm_weight_ptr, norm_bias_ptr,
    mask_ptr, mask_batch_stride, mask_i_stride, mask_j_stride, n_residues, n_tiles, eps,
    BOTH_AT_ONCE: gl.constexpr,
):  # fmt: skip
    """Write a and b, gated and masked. z, a, b and the weights are TMA descriptors.

    BOTH_AT_ONCE: the products of gate and projection are in flight together.
    """
    MASKED: gl.constexpr = mask_ptr is not None
    BIASED: gl.constexpr = projection_bias_ptr is not None or gate_bias_ptr is not None
    memory = fill_shared_memory(
        z, (projection_weight, projection_bias_ptr), (gate_weight, gate_bias_ptr), (norm_weight_ptr, norm_bias_ptr),
        None, 4, BIASED, PROJECT_GROUPS * PROJECT_SLOTS, PROJECT_GROUPS * 2,
    )  # fmt: skip
    mask = (mask_ptr, mask_batch_stride, mask_i_stride, mask_j_stride)
    sizes = (n_residues, n_tiles, eps)
    gl.warp_specialize(
        [
            (project_tiles, (z, a, b, memory, mask, sizes, MASKED, BIASED, BOTH_AT_ONCE, 0)),
            (project_tiles, (z, a, b, memory, mask, sizes, MASKED, BIASED, BOTH_AT_ONCE, 1)),
            (project_tiles, (z, a, b, memory, mask, sizes, MASKED, BIASED, BOTH_AT_ONCE, 2)),
        ],
        [GROUP_WARPS, GROUP_WARPS],
        [PROJECT_REGISTERS, PROJECT_REGISTERS],
    )


@gluon.jit
def project_tiles(
    z, a, b, memory, mask, sizes, MASKED: gl.constexpr, BIASED: gl.constexpr, BOTH_AT_ONCE: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Run one warpgroup over its tiles. Each tile loads two halves of z."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, 64, 16])
    SLOTS: gl.constexpr = PROJECT_SLOTS
    FIRST: gl.constexpr = GROUP * SLOTS
    weights, vectors, biases, ring, ready, staging = memory
    n_residues, n_tiles, eps = sizes
    tile = first_tile(GROUP)
    step = gl.num_programs(0) * PROJECT_GROUPS
    batch, i, j = pairs_of_tile(tile, n_residues)
    stride = pairs_of_tile(step, n_residues)
    for half in gl.static_range(2):
        prefetch_pairs(z, (batch, i, j), half, ring, ready, half, tile < n_tiles, FIRST, SLOTS)
    number = 0
    while tile < n_tiles:
        here = gl.minimum(tile, 0)  # zero, hidden from the compiler: it would hold vectors in registers across tiles
        next_place, has_next = later((batch, i, j), stride, n_residues), tile + step < n_tiles
        # [64, 1]
        bits = mask_bits(mask, batch, i, j + gl.arange(0, N, gl.SliceLayout(1, ACC)), n_residues, MASKED)
        z0 = wait_for_tile(ring, ready, number, FIRST, SLOTS).load(ACC)  # [64, 64]
        z1 = wait_for_tile(ring, ready, number + 1, FIRST, SLOTS).load(ACC)  # [64, 64]
        prefetch_pairs(z, next_place, 0, ring, ready, number + 2, has_next, FIRST, SLOTS)
        prefetch_pairs(z, next_place, 1, ring, ready, number + 3, has_next, FIRST, SLOTS)
        s0, s1, _ = standardise(z0, z1, eps)  # [64, 64] each, [64]
        zn0 = normed(s0, vectors, here + 0, z.dtype, ACC)  # [64, 64]
        zn1 = normed(s1, vectors, here + 1, z.dtype, ACC)  # [64, 64]
        for block in range(4):  # two blocks of a, two of b
            gate = start_projection(zn0, zn1, weights, 8 + 2 * block, biases, 4 + block, ACC, BIASED)  # [64, 64]
            if BOTH_AT_ONCE:
                projection = start_projection(zn0, zn1, weights, 2 * block, biases, block, ACC, BIASED)  # [64, 64]
                gate = warpgroup_mma_wait(2, deps=[gate])
            else:
                gate = warpgroup_mma_wait(0, deps=[gate])
                projection = start_projection(zn0, zn1, weights, 2 * block, biases, block, ACC, BIASED)  # [64, 64]
            opening = sigmoid(gate)
            projection = warpgroup_mma_wait(0, deps=[projection])
            value = masked(projection * opening, bits, MASKED).to(z.dtype)  # [64, 64]
            place = staging.index(2 * GROUP + block % 2)
            stage_transposed(value, place)
            if block < 2:
                put(a, [batch, i, block * N, j], place)
            else:
                put(b, [batch, i, (block - 2) * N, j], place)
        number += 2
        tile += step
        batch, i, j = next_place
    tma.store_wait(0)


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_output_hopper_kernel(
    z, x, y, output_weight, output_gate_weight, output_bias_ptr, output_gate_bias_ptr, norm_weight_ptr, norm_bias_ptr,
    output_norm_weight_ptr, output_norm_bias_ptr, n_residues, n_tiles, eps,
):  # fmt: skip
    """Write y from the product x and z. These and the weights are TMA descriptors.

    Two CTAs of one warpgroup share a multiprocessor, and so one copy of the code: one CTA of two warpgroups, each with
    code of its own, took 26 µs in place of 21 at n = 256, 77 in place of 65 at 512. Each tile loads two halves of x,
    then two of z.
    """
    BIASED: gl.constexpr = output_bias_ptr is not None or output_gate_bias_ptr is not None
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, 64, 16])
    SLOTS: gl.constexpr = OUTPUT_SLOTS
    memory = fill_shared_memory(
        z, (output_weight, output_bias_ptr), (output_gate_weight, output_gate_bias_ptr),
        (norm_weight_ptr, norm_bias_ptr), (output_norm_weight_ptr, output_norm_bias_ptr), 2, BIASED, SLOTS, 1,
    )  # fmt: skip
    weights, vectors, biases, ring, ready, staging = memory
    place = staging.index(0)
    tile, step = gl.program_id(0), gl.num_programs(0)
    batch, i, j = pairs_of_tile(tile, n_residues)
    stride = pairs_of_tile(step, n_residues)
    prefetch_first_tile(x, z, (batch, i, j), ring, ready, tile < n_tiles, 0, SLOTS)
    number = 0
    while tile < n_tiles:
        here = gl.minimum(tile, 0)  # zero, hidden from the compiler: it would hold vectors in registers across tiles
        next_place, has_next = later((batch, i, j), stride, n_residues), tile + step < n_tiles
        x0 = wait_for_tile(ring, ready, number, 0, SLOTS).permute([1, 0]).load(ACC)  # [64, 64]
        x1 = wait_for_tile(ring, ready, number + 1, 0, SLOTS).permute([1, 0]).load(ACC)  # [64, 64]
        prefetch_matrices(x, next_place, 0, ring, ready, number + 4, has_next, 0, SLOTS)
        prefetch_matrices(x, next_place, 1, ring, ready, number + 5, has_next, 0, SLOTS)
        s0, s1, _ = standardise(x0, x1, eps)  # [64, 64] each, [64]
        xn0 = normed(s0, vectors, here + 4, z.dtype, ACC)  # [64, 64]
        xn1 = normed(s1, vectors, here + 5, z.dtype, ACC)  # [64, 64]
        z0 = wait_for_tile(ring, ready, number + 2, 0, SLOTS).load(ACC)  # [64, 64]
        z1 = wait_for_tile(ring, ready, number + 3, 0, SLOTS).load(ACC)  # [64, 64]
        prefetch_pairs(z, next_place, 0, ring, ready, number + 6, has_next, 0, SLOTS)
        prefetch_pairs(z, next_place, 1, ring, ready, number + 7, has_next, 0, SLOTS)
        s0, s1, _ = standardise(z0, z1, eps)  # [64, 64] each, [64]
        zn0 = normed(s0, vectors, here + 0, z.dtype, ACC)  # [64, 64]
        zn1 = normed(s1, vectors, here + 1, z.dtype, ACC)  # [64, 64]
        for block in range(2):
            gate = start_projection(zn0, zn1, weights, 4 + 2 * block, biases, 2 + block, ACC, BIASED)  # [64, 64]
            output = start_projection(xn0, xn1, weights, 2 * block, biases, block, ACC, BIASED)  # [64, 64]
            gate = warpgroup_mma_wait(2, deps=[gate])
            opening = sigmoid(gate)
            output = warpgroup_mma_wait(0, deps=[output])
            stage((output * opening).to(z.dtype), place, 0)
            put(y, [batch, i, j, block * N], place)
        number += 4
        tile += step
        batch, i, j = next_place
    tma.store_wait(0)


class HopperForward:
    """Hopper, bf16, 128 channels."""

    def takes(self, update: Update) -> bool:
        return takes_hopper(update.plan, update.problem, update.y)

    def suits(self, update: Update) -> bool:
        return suits_hopper(update.problem)

    def plan(self, update: Update) -> None:
        """Put on the plan the kernels that write y, a, b and x."""
        plan, problem, y, a, b, x = update.plan, update.problem, update.y, update.a, update.b, update.x
        z = tiles_of_pairs(problem.z)
        # Three warpgroups have no registers for a copy of the left operand for each product in flight.
        plan.launch(
            triangle_project_hopper_kernel, grid(plan, problem, ThreeGroups()), ThreeGroups(),
            z=z, a=tiles_of_matrices(problem, a), b=tiles_of_matrices(problem, b),
            **arguments(triangle_project_hopper_kernel, problem), BOTH_AT_ONCE=not copies_left_operands(),
        )  # fmt: skip
        problem.plan_x(plan, a, b, x)
        plan.launch(
            triangle_output_hopper_kernel, grid(plan, problem, OneGroup()), OneGroup(),
            z=z, x=tiles_of_matrices(problem, x), y=tiles_of_pairs(y),
            **arguments(triangle_output_hopper_kernel, problem),
        )  # fmt: skip
