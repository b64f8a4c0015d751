"""The forward's two kernels for Hopper: the same computation as in `forward`, in the manner of `hopper_tiles`.

On an H200 at n = 256 they take 31 and 28 µs where the portable ones take 37 and 38, and at 512 91 and 81 where those
take 136 and 143.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    tma,
    warpgroup_mma_wait,
)

from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.hopper.tiles import (
    NOT_SPECIALISED,
    N,
    ThreeGroups,
    TwoGroups,
    ask_matrices,
    ask_rows,
    await_tile,
    keep_vector,
    kept_bits,
    load_weights,
    make_ready,
    make_vectors,
    mask_arguments,
    masked,
    normed,
    opened,
    place_of,
    programs,
    stage,
    stage_turned,
    standard,
    tiles,
    tiles_of_matrices,
    tiles_of_pairs,
    tiles_of_weight,
    times,
)
from tilesmith.ops.triangle_multiply.problem import Problem
from tilesmith.toolchain.gluon import put
from tilesmith.toolchain.versions import triton_version

# Warpgroups, the tiles that the ring of each has room for, and registers of a thread of all but the first of them.
PROJECT_GROUPS, PROJECT_SLOTS, PROJECT_REGISTERS = gl.constexpr(3), gl.constexpr(2), gl.constexpr(160)
OUTPUT_GROUPS, OUTPUT_SLOTS, OUTPUT_REGISTERS = gl.constexpr(2), gl.constexpr(4), gl.constexpr(232)

# From 3.9 on, Triton has a copy of a left operand in registers for each product under way, for which three warpgroups
# have none left.
COPIES_LEFT_OPERANDS = triton_version() >= (3, 9)


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_project_hopper_kernel(
    z, a, b, projection_weight, gate_weight, projection_bias_ptr, gate_bias_ptr, norm_weight_ptr, norm_bias_ptr,
    mask_ptr, mask_batch_stride, mask_i_stride, mask_j_stride, n_residues, n_tiles, eps,
    BOTH_AT_ONCE: gl.constexpr,
):  # fmt: skip
    """a and b, gated and masked. z, a, b and the weights are descriptors.

    BOTH_AT_ONCE: the products of gate and projection are under way together."""
    MASKED: gl.constexpr = mask_ptr is not None
    BIASED: gl.constexpr = projection_bias_ptr is not None or gate_bias_ptr is not None
    weights = gl.allocate_shared_memory(z.dtype, [16, N, N], projection_weight.layout)
    vectors = make_vectors(4, gl.float32)
    keep_vector(vectors, norm_weight_ptr, 0, 2)
    keep_vector(vectors, norm_bias_ptr, 2, 2)
    biases = make_vectors(8, z.dtype)
    if BIASED:
        keep_vector(biases, projection_bias_ptr, 0, 4)
        keep_vector(biases, gate_bias_ptr, 4, 4)
    ring = gl.allocate_shared_memory(z.dtype, [PROJECT_GROUPS * PROJECT_SLOTS, 1, 1, N, N], z.layout)
    staging = gl.allocate_shared_memory(z.dtype, [PROJECT_GROUPS * 2, 1, 1, N, N], z.layout)
    load_weights(projection_weight, gate_weight, weights, 4)
    ready = make_ready(PROJECT_GROUPS * PROJECT_SLOTS)
    memory = (weights, vectors, biases, ring, ready, staging)
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
    """What one warpgroup does."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, 64, 16])
    SLOTS: gl.constexpr = PROJECT_SLOTS
    FIRST: gl.constexpr = GROUP * SLOTS
    weights, vectors, biases, ring, ready, staging = memory
    n_residues, n_tiles, eps = sizes
    tile = gl.program_id(0) * PROJECT_GROUPS + GROUP
    step = gl.num_programs(0) * PROJECT_GROUPS
    batch, i, j = place_of(tile, n_residues)
    for half in gl.static_range(2):
        ask_rows(z, (batch, i, j), half, ring, ready, half, tile < n_tiles, FIRST, SLOTS)
    number = 0
    while tile < n_tiles:
        here = gl.minimum(tile, 0)  # 0, but not for the compiler, which would hold vectors in registers for all tiles
        later, more = place_of(tile + step, n_residues), tile + step < n_tiles
        kept = kept_bits(mask, batch, i, j + gl.arange(0, N, gl.SliceLayout(1, ACC)), n_residues, MASKED)
        z0 = await_tile(ring, ready, number, FIRST, SLOTS).load(ACC)
        z1 = await_tile(ring, ready, number + 1, FIRST, SLOTS).load(ACC)
        ask_rows(z, later, 0, ring, ready, number + 2, more, FIRST, SLOTS)
        ask_rows(z, later, 1, ring, ready, number + 3, more, FIRST, SLOTS)
        s0, s1, _ = standard(z0, z1, eps)
        zn0 = normed(s0, vectors, here + 0, z.dtype, ACC)
        zn1 = normed(s1, vectors, here + 1, z.dtype, ACC)
        for block in range(4):  # two of a, two of b
            gate = times(zn0, zn1, weights, 8 + 2 * block, biases, 4 + block, ACC, BIASED)
            if BOTH_AT_ONCE:
                projection = times(zn0, zn1, weights, 2 * block, biases, block, ACC, BIASED)
                gate = warpgroup_mma_wait(2, deps=[gate])
            else:
                gate = warpgroup_mma_wait(0, deps=[gate])
                projection = times(zn0, zn1, weights, 2 * block, biases, block, ACC, BIASED)
            opening = opened(gate)
            projection = warpgroup_mma_wait(0, deps=[projection])
            value = masked(projection * opening, kept, MASKED).to(z.dtype)
            place = staging.index(2 * GROUP + block % 2)
            stage_turned(value, place)
            if block < 2:
                put(a, [batch, i, block * N, j], place)
            else:
                put(b, [batch, i, (block - 2) * N, j], place)
        number += 2
        tile += step
        batch, i, j = later
    tma.store_wait(0)


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_output_hopper_kernel(
    z, x, y, output_weight, output_gate_weight, output_bias_ptr, output_gate_bias_ptr, norm_weight_ptr, norm_bias_ptr,
    output_norm_weight_ptr, output_norm_bias_ptr, n_residues, n_tiles, eps,
):  # fmt: skip
    """y from the product x and z. These and the weights are descriptors."""
    BIASED: gl.constexpr = output_bias_ptr is not None or output_gate_bias_ptr is not None
    weights = gl.allocate_shared_memory(z.dtype, [8, N, N], output_weight.layout)
    vectors = make_vectors(8, gl.float32)
    keep_vector(vectors, norm_weight_ptr, 0, 2)
    keep_vector(vectors, norm_bias_ptr, 2, 2)
    keep_vector(vectors, output_norm_weight_ptr, 4, 2)
    keep_vector(vectors, output_norm_bias_ptr, 6, 2)
    biases = make_vectors(4, z.dtype)
    if BIASED:
        keep_vector(biases, output_bias_ptr, 0, 2)
        keep_vector(biases, output_gate_bias_ptr, 2, 2)
    ring = gl.allocate_shared_memory(z.dtype, [OUTPUT_GROUPS * OUTPUT_SLOTS, 1, 1, N, N], z.layout)
    staging = gl.allocate_shared_memory(z.dtype, [OUTPUT_GROUPS * 2, 1, 1, N, N], z.layout)
    load_weights(output_weight, output_gate_weight, weights, 2)
    ready = make_ready(OUTPUT_GROUPS * OUTPUT_SLOTS)
    memory = (weights, vectors, biases, ring, ready, staging)
    sizes = (n_residues, n_tiles, eps)
    gl.warp_specialize(
        [
            (output_tiles, (z, x, y, memory, sizes, BIASED, 0)),
            (output_tiles, (z, x, y, memory, sizes, BIASED, 1)),
        ],
        [GROUP_WARPS],
        [OUTPUT_REGISTERS],
    )


@gluon.jit
def output_tiles(z, x, y, memory, sizes, BIASED: gl.constexpr, GROUP: gl.constexpr):
    """What one warpgroup does: of each tile, two of x come, then two of z."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, 64, 16])
    SLOTS: gl.constexpr = OUTPUT_SLOTS
    FIRST: gl.constexpr = GROUP * SLOTS
    weights, vectors, biases, ring, ready, staging = memory
    n_residues, n_tiles, eps = sizes
    tile = gl.program_id(0) * OUTPUT_GROUPS + GROUP
    step = gl.num_programs(0) * OUTPUT_GROUPS
    batch, i, j = place_of(tile, n_residues)
    for half in gl.static_range(2):
        ask_matrices(x, (batch, i, j), half, ring, ready, half, tile < n_tiles, FIRST, SLOTS)
        ask_rows(z, (batch, i, j), half, ring, ready, 2 + half, tile < n_tiles, FIRST, SLOTS)
    number = 0
    while tile < n_tiles:
        here = gl.minimum(tile, 0)  # 0, but not for the compiler, which would hold vectors in registers for all tiles
        later, more = place_of(tile + step, n_residues), tile + step < n_tiles
        x0 = await_tile(ring, ready, number, FIRST, SLOTS).permute([1, 0]).load(ACC)
        x1 = await_tile(ring, ready, number + 1, FIRST, SLOTS).permute([1, 0]).load(ACC)
        ask_matrices(x, later, 0, ring, ready, number + 4, more, FIRST, SLOTS)
        ask_matrices(x, later, 1, ring, ready, number + 5, more, FIRST, SLOTS)
        s0, s1, _ = standard(x0, x1, eps)
        xn0 = normed(s0, vectors, here + 4, z.dtype, ACC)
        xn1 = normed(s1, vectors, here + 5, z.dtype, ACC)
        z0 = await_tile(ring, ready, number + 2, FIRST, SLOTS).load(ACC)
        z1 = await_tile(ring, ready, number + 3, FIRST, SLOTS).load(ACC)
        ask_rows(z, later, 0, ring, ready, number + 6, more, FIRST, SLOTS)
        ask_rows(z, later, 1, ring, ready, number + 7, more, FIRST, SLOTS)
        s0, s1, _ = standard(z0, z1, eps)
        zn0 = normed(s0, vectors, here + 0, z.dtype, ACC)
        zn1 = normed(s1, vectors, here + 1, z.dtype, ACC)
        for block in range(2):
            gate = times(zn0, zn1, weights, 4 + 2 * block, biases, 2 + block, ACC, BIASED)
            output = times(xn0, xn1, weights, 2 * block, biases, block, ACC, BIASED)
            gate = warpgroup_mma_wait(2, deps=[gate])
            opening = opened(gate)
            output = warpgroup_mma_wait(0, deps=[output])
            place = staging.index(2 * GROUP + block)
            stage((output * opening).to(z.dtype), place)
            put(y, [batch, i, j, block * N], place)
        number += 4
        tile += step
        batch, i, j = later
    tma.store_wait(0)


def plan_hopper_forward(plan: Plan, problem: Problem, y: Operand, a: Operand, b: Operand, x: Operand) -> None:
    """y, a, b and x are filled."""
    z = tiles_of_pairs(problem.z)
    norm = {"norm_weight_ptr": problem.norm_weight, "norm_bias_ptr": problem.norm_bias}
    known = {"n_residues": problem.residues, "n_tiles": tiles(problem), "eps": float(problem.eps)}
    plan.launch(
        triangle_project_hopper_kernel, programs(plan, problem, ThreeGroups()), ThreeGroups(),
        z=z, a=tiles_of_matrices(problem, a), b=tiles_of_matrices(problem, b),
        projection_weight=tiles_of_weight(problem.projection_weight), gate_weight=tiles_of_weight(problem.gate_weight),
        projection_bias_ptr=problem.projection_bias, gate_bias_ptr=problem.gate_bias,
        **norm, **mask_arguments(problem), **known, BOTH_AT_ONCE=not COPIES_LEFT_OPERANDS,
    )  # fmt: skip
    problem.plan_product(plan, a, b, x, turned="right" if problem.outgoing else "left")
    plan.launch(
        triangle_output_hopper_kernel, programs(plan, problem, TwoGroups()), TwoGroups(),
        z=z, x=tiles_of_matrices(problem, x), y=tiles_of_pairs(y),
        output_weight=tiles_of_weight(problem.output_weight),
        output_gate_weight=tiles_of_weight(problem.output_gate_weight),
        output_bias_ptr=problem.output_bias, output_gate_bias_ptr=problem.output_gate_bias,
        output_norm_weight_ptr=problem.output_norm_weight, output_norm_bias_ptr=problem.output_norm_bias,
        **norm, **known,
    )  # fmt: skip
