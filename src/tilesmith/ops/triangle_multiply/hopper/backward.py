"""The backward's two kernels for Hopper: the same computation as in `backward`, in the manner of `hopper_tiles`.

Neither sums over pairs. What they leave in memory are standard rows, of mean zero and variance one, before weight and
bias of a norm: of these all sums come, in `hopper_weights`. The gradient of zn begins with what comes through the
output gate, whose weight the first kernel holds; it leaves that in the memory of dz, where the second finds it tile by
tile, adds what comes through a and b, and stores dz in its place.

On an H200 at n = 256 they take 70 and 54 µs where the portable ones take 119 and 144, and at 512 215 and 190 where
those take 457 and 550.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.hopper.tiles import (
    NOT_SPECIALISED,
    WIDTH,
    N,
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
    times_back,
    vector,
)
from tilesmith.ops.triangle_multiply.problem import Problem
from tilesmith.toolchain.gluon import put

GROUPS = gl.constexpr(2)  # warpgroups
SLOTS = gl.constexpr(4)  # tiles that the ring of each has room for
REGISTERS = gl.constexpr(248)  # of a thread of the second of them


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_output_gradient_hopper_kernel(
    dy, z, x, zs, xs, doutput, dprojections, dzn, dx, output_weight, output_gate_weight, inverse_ptr,
    output_bias_ptr, output_gate_bias_ptr, norm_weight_ptr, norm_bias_ptr, output_norm_weight_ptr,
    output_norm_bias_ptr, n_residues, n_tiles, eps,
):  # fmt: skip
    """dx; standard rows zs and xs, and 1 / deviation of z's; do; the output gate's gradient, behind the others of
    `dprojections`, and what comes of it for zn. All but pointers are descriptors."""
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
    ring = gl.allocate_shared_memory(z.dtype, [GROUPS * SLOTS, 1, 1, N, N], z.layout)
    staging = gl.allocate_shared_memory(z.dtype, [GROUPS * 6, 1, 1, N, N], z.layout)
    load_weights(output_weight, output_gate_weight, weights, 2)
    ready = make_ready(GROUPS * SLOTS)
    memory = (weights, vectors, biases, ring, ready, staging)
    given = (dy, z, x)
    made = (zs, xs, doutput, dprojections, dzn, dx)
    sizes = (n_residues, n_tiles, eps)
    gl.warp_specialize(
        [
            (output_gradient_tiles, (given, made, inverse_ptr, memory, sizes, BIASED, 0)),
            (output_gradient_tiles, (given, made, inverse_ptr, memory, sizes, BIASED, 1)),
        ],
        [GROUP_WARPS],
        [REGISTERS],
    )


@gluon.jit
def output_gradient_tiles(
    given, made, inverse_ptr, memory, sizes, BIASED: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """What one warpgroup does: of each tile, two of x come, two of z, and two of dy."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, 64, 16])
    FIRST: gl.constexpr = GROUP * SLOTS
    FIRST_PLACE: gl.constexpr = 6 * GROUP  # of six: two for xs, which stay, two for outputs and two for gates
    dy, z, x = given
    zs, xs, doutputs, dprojections, dzn, dx = made
    weights, vectors, biases, ring, ready, staging = memory
    n_residues, n_tiles, eps = sizes
    tile = gl.program_id(0) * GROUPS + GROUP
    step = gl.num_programs(0) * GROUPS
    batch, i, j = place_of(tile, n_residues)
    for half in gl.static_range(2):
        ask_matrices(x, (batch, i, j), half, ring, ready, half, tile < n_tiles, FIRST, SLOTS)
        ask_rows(z, (batch, i, j), half, ring, ready, 2 + half, tile < n_tiles, FIRST, SLOTS)
    number = 0
    while tile < n_tiles:
        here = gl.minimum(tile, 0)  # 0, but not for the compiler, which would hold vectors in registers for all tiles
        xs_place0, xs_place1 = staging.index(here + FIRST_PLACE), staging.index(here + FIRST_PLACE + 1)
        output_place0, output_place1 = staging.index(here + FIRST_PLACE + 2), staging.index(here + FIRST_PLACE + 3)
        gate_place0, gate_place1 = staging.index(here + FIRST_PLACE + 4), staging.index(here + FIRST_PLACE + 5)
        later, more = place_of(tile + step, n_residues), tile + step < n_tiles
        x0 = await_tile(ring, ready, number, FIRST, SLOTS).permute([1, 0]).load(ACC)
        x1 = await_tile(ring, ready, number + 1, FIRST, SLOTS).permute([1, 0]).load(ACC)
        ask_rows(dy, (batch, i, j), 0, ring, ready, number + 4, True, FIRST, SLOTS)
        ask_rows(dy, (batch, i, j), 1, ring, ready, number + 5, True, FIRST, SLOTS)
        s0, s1, x_inverse = standard(x0, x1, eps)
        s0, s1 = s0.to(z.dtype), s1.to(z.dtype)
        stage(s0, xs_place0)
        put(xs, [batch, i, j, 0], xs_place0)
        stage(s1, xs_place1)
        put(xs, [batch, i, j, N], xs_place1)
        xn0 = normed(s0, vectors, here + 4, z.dtype, ACC)
        xn1 = normed(s1, vectors, here + 5, z.dtype, ACC)
        z0 = await_tile(ring, ready, number + 2, FIRST, SLOTS).load(ACC)
        z1 = await_tile(ring, ready, number + 3, FIRST, SLOTS).load(ACC)
        ask_matrices(x, later, 0, ring, ready, number + 6, more, FIRST, SLOTS)
        ask_matrices(x, later, 1, ring, ready, number + 7, more, FIRST, SLOTS)
        s0, s1, inverse = standard(z0, z1, eps)
        s0, s1 = s0.to(z.dtype), s1.to(z.dtype)
        columns = j + gl.arange(0, N, gl.SliceLayout(1, ACC))
        gl.store(inverse_ptr + (batch * n_residues + i) * n_residues + columns, inverse, mask=columns < n_residues)
        stage(s0, output_place0)
        put(zs, [batch, i, j, 0], output_place0)
        stage(s1, output_place1)
        put(zs, [batch, i, j, N], output_place1)
        zn0 = normed(s0, vectors, here + 0, z.dtype, ACC)
        zn1 = normed(s1, vectors, here + 1, z.dtype, ACC)
        for block in range(2):
            gate = times(zn0, zn1, weights, 4 + 2 * block, biases, 2 + block, ACC, BIASED)
            output = times(xn0, xn1, weights, 2 * block, biases, block, ACC, BIASED)
            dy_block = await_tile(ring, ready, number + 4 + block, FIRST, SLOTS).load(ACC)
            ask_rows(z, later, block, ring, ready, number + 8 + block, more, FIRST, SLOTS)
            gate = warpgroup_mma_wait(2, deps=[gate])
            opening = opened(gate)
            output = warpgroup_mma_wait(0, deps=[output])
            doutput = dy_block.to(gl.float32) * opening
            dgate = doutput * output * (1 - opening)
            place = staging.index(FIRST_PLACE + 2 + block)
            stage(doutput.to(z.dtype), place)
            put(doutputs, [batch, i, j, block * N], place)
            place = staging.index(FIRST_PLACE + 4 + block)
            stage(dgate.to(z.dtype), place)
            put(dprojections, [batch, i, j, 4 * WIDTH + block * N], place)
        # What is stored by way of shared memory is multiplied from there.
        left, right = gate_place0.reshape([N, N]), gate_place1.reshape([N, N])
        d0 = times_back(left, right, weights, here + 4, ACC)
        d1 = times_back(left, right, weights, here + 5, ACC)
        d0, d1 = warpgroup_mma_wait(0, deps=[d0, d1])
        stage(d0.to(z.dtype), gate_place0)
        put(dzn, [batch, i, j, 0], gate_place0)
        stage(d1.to(z.dtype), gate_place1)
        put(dzn, [batch, i, j, N], gate_place1)
        left, right = output_place0.reshape([N, N]), output_place1.reshape([N, N])
        d0 = times_back(left, right, weights, here, ACC)
        d1 = times_back(left, right, weights, here + 1, ACC)
        d0, d1 = warpgroup_mma_wait(0, deps=[d0, d1])
        d0, d1 = d0 * vector(vectors, here + 4, ACC), d1 * vector(vectors, here + 5, ACC)
        mean = ((gl.sum(d0, 1) + gl.sum(d1, 1)) / WIDTH)[:, None]
        s1 = xs_place1.reshape([N, N]).load(ACC)
        s0 = xs_place0.reshape([N, N]).load(ACC)
        along = ((gl.sum(d0 * s0.to(gl.float32), 1) + gl.sum(d1 * s1.to(gl.float32), 1)) / WIDTH)[:, None]
        d0 = x_inverse[:, None] * (d0 - mean - s0.to(gl.float32) * along)
        stage_turned(d0.to(z.dtype), output_place0)
        put(dx, [batch, i, 0, j], output_place0)
        d1 = x_inverse[:, None] * (d1 - mean - s1.to(gl.float32) * along)
        stage_turned(d1.to(z.dtype), output_place1)
        put(dx, [batch, i, N, j], output_place1)
        number += 6
        tile += step
        batch, i, j = later
    tma.store_wait(0)


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_project_gradient_hopper_kernel(
    da, db, zs, dz, dprojections, projection_weight, gate_weight, inverse_ptr, projection_bias_ptr, gate_bias_ptr,
    norm_weight_ptr, norm_bias_ptr, mask_ptr, mask_batch_stride, mask_i_stride, mask_j_stride, n_residues, n_tiles,
):  # fmt: skip
    """dz, where the output gate's part of zn's gradient is; and the gradients of projections and gates."""
    MASKED: gl.constexpr = mask_ptr is not None
    BIASED: gl.constexpr = projection_bias_ptr is not None or gate_bias_ptr is not None
    weights = gl.allocate_shared_memory(zs.dtype, [16, N, N], projection_weight.layout)
    vectors = make_vectors(4, gl.float32)
    keep_vector(vectors, norm_weight_ptr, 0, 2)
    keep_vector(vectors, norm_bias_ptr, 2, 2)
    biases = make_vectors(8, zs.dtype)
    if BIASED:
        keep_vector(biases, projection_bias_ptr, 0, 4)
        keep_vector(biases, gate_bias_ptr, 4, 4)
    ring = gl.allocate_shared_memory(zs.dtype, [GROUPS * SLOTS, 1, 1, N, N], zs.layout)
    staging = gl.allocate_shared_memory(zs.dtype, [GROUPS * 2, 1, 1, N, N], zs.layout)
    load_weights(projection_weight, gate_weight, weights, 4)
    ready = make_ready(GROUPS * SLOTS)
    memory = (weights, vectors, biases, ring, ready, staging)
    mask = (mask_ptr, mask_batch_stride, mask_i_stride, mask_j_stride)
    given = (da, db, zs, dz)
    sizes = (n_residues, n_tiles)
    gl.warp_specialize(
        [
            (project_gradient_tiles, (given, dprojections, inverse_ptr, memory, mask, sizes, MASKED, BIASED, 0)),
            (project_gradient_tiles, (given, dprojections, inverse_ptr, memory, mask, sizes, MASKED, BIASED, 1)),
        ],
        [GROUP_WARPS],
        [REGISTERS],
    )


@gluon.jit
def ask_gradient_tile(
    given, place, ring, ready, number, is_one, PART: gl.constexpr, FIRST: gl.constexpr, SLOTS: gl.constexpr
):  # fmt: skip
    """Of the ten that are wanted of each tile of pairs: zs, what there is of zn's gradient, da, db, and zs again."""
    da, db, zs, dzn = given
    if PART < 2:
        ask_rows(zs, place, PART, ring, ready, number, is_one, FIRST, SLOTS)
    elif PART < 4:
        ask_rows(dzn, place, PART - 2, ring, ready, number, is_one, FIRST, SLOTS)
    elif PART < 6:
        ask_matrices(da, place, PART - 4, ring, ready, number, is_one, FIRST, SLOTS)
    else:
        gl.static_assert(PART < 8)
        ask_matrices(db, place, PART - 6, ring, ready, number, is_one, FIRST, SLOTS)


@gluon.jit
def project_gradient_tiles(
    given, dprojections, inverse_ptr, memory, mask, sizes, MASKED: gl.constexpr,
    BIASED: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """What one warpgroup does."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, 64, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    FIRST: gl.constexpr = GROUP * SLOTS
    _da, _db, zs, dz = given
    weights, vectors, biases, ring, ready, staging = memory
    n_residues, n_tiles = sizes
    tile = gl.program_id(0) * GROUPS + GROUP
    step = gl.num_programs(0) * GROUPS
    place0, place1 = staging.index(2 * GROUP), staging.index(2 * GROUP + 1)
    batch, i, j = place_of(tile, n_residues)
    for part in gl.static_range(SLOTS):
        ask_gradient_tile(given, (batch, i, j), ring, ready, part, tile < n_tiles, part, FIRST, SLOTS)
    number = 0
    while tile < n_tiles:
        here = gl.minimum(tile, 0)  # 0, but not for the compiler, which would hold vectors in registers for all tiles
        later, more = place_of(tile + step, n_residues), tile + step < n_tiles
        columns = j + gl.arange(0, N, gl.SliceLayout(1, ACC))
        kept = kept_bits(mask, batch, i, columns, n_residues, MASKED)
        s0 = await_tile(ring, ready, number, FIRST, SLOTS).load(ACC)
        ask_gradient_tile(given, (batch, i, j), ring, ready, number + 4, True, 4, FIRST, SLOTS)
        zn0 = normed(s0, vectors, here + 0, zs.dtype, ACC)
        s1 = await_tile(ring, ready, number + 1, FIRST, SLOTS).load(ACC)
        ask_gradient_tile(given, (batch, i, j), ring, ready, number + 5, True, 5, FIRST, SLOTS)
        zn1 = normed(s1, vectors, here + 1, zs.dtype, ACC)
        dzn0 = await_tile(ring, ready, number + 2, FIRST, SLOTS).load(ACC).to(gl.float32)
        ask_gradient_tile(given, (batch, i, j), ring, ready, number + 6, True, 6, FIRST, SLOTS)
        dzn1 = await_tile(ring, ready, number + 3, FIRST, SLOTS).load(ACC).to(gl.float32)
        ask_gradient_tile(given, (batch, i, j), ring, ready, number + 7, True, 7, FIRST, SLOTS)
        for block in range(4):  # two of a, two of b
            gate = times(zn0, zn1, weights, 8 + 2 * block, biases, 4 + block, ACC, BIASED)
            projection = times(zn0, zn1, weights, 2 * block, biases, block, ACC, BIASED)
            dgated = await_tile(ring, ready, number + 4 + block, FIRST, SLOTS).permute([1, 0]).load(ACC)
            # Four on, that is zs again: of this tile, and after that of the next.
            if block < 2:
                ask_rows(zs, (batch, i, j), block, ring, ready, number + 8 + block, True, FIRST, SLOTS)
            else:
                ask_rows(zs, later, block - 2, ring, ready, number + 8 + block, more, FIRST, SLOTS)
            gate = warpgroup_mma_wait(2, deps=[gate])
            opening = opened(gate)
            projection = warpgroup_mma_wait(0, deps=[projection])
            dprojection = masked(dgated.to(gl.float32) * opening, kept, MASKED)
            dgate = masked(dprojection * projection * (1 - opening), kept, MASKED).to(zs.dtype)
            dprojection = dprojection.to(zs.dtype)
            left, left_gate = gl.convert_layout(dprojection, LEFT), gl.convert_layout(dgate, LEFT)
            dzn0 = warpgroup_mma(left, weights.index(2 * block), dzn0, is_async=True)
            dzn1 = warpgroup_mma(left, weights.index(2 * block + 1), dzn1, is_async=True)
            dzn0 = warpgroup_mma(left_gate, weights.index(8 + 2 * block), dzn0, is_async=True)
            dzn1 = warpgroup_mma(left_gate, weights.index(8 + 2 * block + 1), dzn1, is_async=True)
            stage(dprojection, place0)
            put(dprojections, [batch, i, j, block * N], place0)
            stage(dgate, place1)
            put(dprojections, [batch, i, j, (4 + block) * N], place1)
            dzn0, dzn1 = warpgroup_mma_wait(0, deps=[dzn0, dzn1])
        s0 = await_tile(ring, ready, number + 8, FIRST, SLOTS).load(ACC).to(gl.float32)
        ask_gradient_tile(given, later, ring, ready, number + 12, more, 2, FIRST, SLOTS)
        s1 = await_tile(ring, ready, number + 9, FIRST, SLOTS).load(ACC).to(gl.float32)
        ask_gradient_tile(given, later, ring, ready, number + 13, more, 3, FIRST, SLOTS)
        inverse_place = inverse_ptr + (batch * n_residues + i) * n_residues + columns
        inverse = gl.load(inverse_place, mask=columns < n_residues, other=0.0)
        d0, d1 = dzn0 * vector(vectors, here + 0, ACC), dzn1 * vector(vectors, here + 1, ACC)
        mean = (gl.sum(d0, 1) + gl.sum(d1, 1)) / WIDTH
        along = (gl.sum(d0 * s0, 1) + gl.sum(d1 * s1, 1)) / WIDTH
        d0 = inverse[:, None] * (d0 - mean[:, None] - s0 * along[:, None])
        d1 = inverse[:, None] * (d1 - mean[:, None] - s1 * along[:, None])
        stage(d0.to(zs.dtype), place0)
        put(dz, [batch, i, j, 0], place0)
        stage(d1.to(zs.dtype), place1)
        put(dz, [batch, i, j, N], place1)
        number += 10
        tile += step
        batch, i, j = later
    tma.store_wait(0)


def plan_output_gradient(
    plan: Plan, problem: Problem, dy: Operand, x: Operand, dx: Operand, dprojections: Operand, dz: Operand
) -> tuple[Operand, Operand, Operand, Operand]:
    """do, standard rows of x and of z, and 1 / deviation of the latter's. dx is filled, the last columns of
    dprojections, and dz with the output gate's part of zn's gradient."""
    pairs, dtype, width = problem.z.shape[:3], problem.z.dtype, int(WIDTH.value)
    doutput, xs, zs = (plan.empty((*pairs, width), dtype) for _ in range(3))
    inverse = plan.empty(pairs, torch.float32)
    plan.launch(
        triangle_output_gradient_hopper_kernel, programs(plan, problem, TwoGroups()), TwoGroups(),
        dy=tiles_of_pairs(dy), z=tiles_of_pairs(problem.z), x=tiles_of_matrices(problem, x),
        zs=tiles_of_pairs(zs), xs=tiles_of_pairs(xs), doutput=tiles_of_pairs(doutput),
        dprojections=tiles_of_pairs(dprojections), dzn=tiles_of_pairs(dz), dx=tiles_of_matrices(problem, dx),
        output_weight=tiles_of_weight(problem.output_weight),
        output_gate_weight=tiles_of_weight(problem.output_gate_weight), inverse_ptr=inverse,
        output_bias_ptr=problem.output_bias, output_gate_bias_ptr=problem.output_gate_bias,
        norm_weight_ptr=problem.norm_weight, norm_bias_ptr=problem.norm_bias,
        output_norm_weight_ptr=problem.output_norm_weight, output_norm_bias_ptr=problem.output_norm_bias,
        n_residues=problem.residues, n_tiles=tiles(problem), eps=float(problem.eps),
    )  # fmt: skip
    return doutput, xs, zs, inverse


def plan_project_gradient(
    plan: Plan, problem: Problem, da: Operand, db: Operand, zs: Operand, inverse: Operand, dprojections: Operand,
    dz: Operand,
) -> None:  # fmt: skip
    """dprojections and dz are filled."""
    plan.launch(
        triangle_project_gradient_hopper_kernel, programs(plan, problem, TwoGroups()), TwoGroups(),
        da=tiles_of_matrices(problem, da), db=tiles_of_matrices(problem, db), zs=tiles_of_pairs(zs),
        dz=tiles_of_pairs(dz), dprojections=tiles_of_pairs(dprojections),
        projection_weight=tiles_of_weight(problem.projection_weight), gate_weight=tiles_of_weight(problem.gate_weight),
        inverse_ptr=inverse, projection_bias_ptr=problem.projection_bias, gate_bias_ptr=problem.gate_bias,
        norm_weight_ptr=problem.norm_weight, norm_bias_ptr=problem.norm_bias, **mask_arguments(problem),
        n_residues=problem.residues, n_tiles=tiles(problem),
    )  # fmt: skip
