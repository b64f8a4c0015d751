"""The backward's two Hopper kernels: same computation as `fused/backward.py` (read that first); `ring.py` says how.

Neither kernel sums over pairs. They write standard rows (mean zero, variance one, before a norm's weight and bias), and
`weight_gradients.py` makes all sums from those. The gradient of zn starts with the output gate's part: the first kernel
holds that gate's weight, and writes this part into dz. The second kernel reads the part tile by tile, adds the part of
a and b, and writes dz in its place.

On an H200 they take 70 and 54 µs at n = 256, the portable kernels 119 and 144; at n = 512 they take 215 and 190 µs, the
portable kernels 457 and 550.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma, warpgroup_mma_wait

from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.runtime.plan import Operand
from tilesmith.ops.triangle_multiply.hopper.launch import (
    TwoGroups,
    arguments,
    grid,
    suits_hopper,
    takes_hopper,
    tiles_of_matrices,
    tiles_of_pairs,
)
from tilesmith.ops.triangle_multiply.hopper.layers import (
    fill_shared_memory,
    load_vector,
    mask_bits,
    masked,
    normed,
    sigmoid,
    standardise,
    start_projection,
    start_projection_gradient,
)
from tilesmith.ops.triangle_multiply.hopper.ring import (
    NOT_SPECIALISED,
    WIDTH,
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
from tilesmith.ops.triangle_multiply.hopper.weight_gradients import plan_moments, plan_weight_gradients
from tilesmith.ops.triangle_multiply.problem import Gradients
from tilesmith.toolchain.gluon import put

GROUPS = gl.constexpr(2)  # warpgroups
SLOTS = gl.constexpr(4)  # in the ring of each warpgroup
REGISTERS = gl.constexpr(248)  # a thread of the second warpgroup


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_output_gradient_hopper_kernel(
    dy, z, x, zs, xs, doutput, dprojections, dzn, dx, output_weight, output_gate_weight, inverse_ptr,
    output_bias_ptr, output_gate_bias_ptr, norm_weight_ptr, norm_bias_ptr, output_norm_weight_ptr,
    output_norm_bias_ptr, n_residues, n_tiles, eps,
):  # fmt: skip
    """Write dx, standard rows zs and xs, 1 / deviation of z's rows, do, the output gate's gradient (the last columns of
    `dprojections`), and that gate's part of the gradient of zn. All but pointers are TMA descriptors."""
    BIASED: gl.constexpr = output_bias_ptr is not None or output_gate_bias_ptr is not None
    memory = fill_shared_memory(
        z, (output_weight, output_bias_ptr), (output_gate_weight, output_gate_bias_ptr),
        (norm_weight_ptr, norm_bias_ptr), (output_norm_weight_ptr, output_norm_bias_ptr), 2, BIASED,
        GROUPS * SLOTS, GROUPS * 6,
    )  # fmt: skip
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
    """Run one warpgroup over its tiles. Each tile loads two halves of x, of z and of dy."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, 64, 16])
    FIRST: gl.constexpr = GROUP * SLOTS
    FIRST_PLACE: gl.constexpr = 6 * GROUP  # of six: two hold xs, two outputs, two gates
    dy, z, x = given
    zs, xs, doutputs, dprojections, dzn, dx = made
    weights, vectors, biases, ring, ready, staging = memory
    n_residues, n_tiles, eps = sizes
    tile = first_tile(GROUP)
    step = gl.num_programs(0) * GROUPS
    batch, i, j = pairs_of_tile(tile, n_residues)
    stride = pairs_of_tile(step, n_residues)
    prefetch_first_tile(x, z, (batch, i, j), ring, ready, tile < n_tiles, FIRST, SLOTS)
    number = 0
    while tile < n_tiles:
        here = gl.minimum(tile, 0)  # zero, hidden from the compiler: it would hold vectors in registers across tiles
        xs_place0, xs_place1 = staging.index(here + FIRST_PLACE), staging.index(here + FIRST_PLACE + 1)
        output_place0, output_place1 = staging.index(here + FIRST_PLACE + 2), staging.index(here + FIRST_PLACE + 3)
        gate_place0, gate_place1 = staging.index(here + FIRST_PLACE + 4), staging.index(here + FIRST_PLACE + 5)
        next_place, has_next = later((batch, i, j), stride, n_residues), tile + step < n_tiles
        x0 = wait_for_tile(ring, ready, number, FIRST, SLOTS).permute([1, 0]).load(ACC)  # [64, 64]
        x1 = wait_for_tile(ring, ready, number + 1, FIRST, SLOTS).permute([1, 0]).load(ACC)  # [64, 64]
        prefetch_pairs(dy, (batch, i, j), 0, ring, ready, number + 4, True, FIRST, SLOTS)
        prefetch_pairs(dy, (batch, i, j), 1, ring, ready, number + 5, True, FIRST, SLOTS)
        s0, s1, x_inverse = standardise(x0, x1, eps)  # [64, 64] each, [64]
        s0, s1 = s0.to(z.dtype), s1.to(z.dtype)
        stage(s0, xs_place0)
        put(xs, [batch, i, j, 0], xs_place0)
        stage(s1, xs_place1)
        put(xs, [batch, i, j, N], xs_place1)
        xn0 = normed(s0, vectors, here + 4, z.dtype, ACC)  # [64, 64]
        xn1 = normed(s1, vectors, here + 5, z.dtype, ACC)  # [64, 64]
        z0 = wait_for_tile(ring, ready, number + 2, FIRST, SLOTS).load(ACC)  # [64, 64]
        z1 = wait_for_tile(ring, ready, number + 3, FIRST, SLOTS).load(ACC)  # [64, 64]
        prefetch_matrices(x, next_place, 0, ring, ready, number + 6, has_next, FIRST, SLOTS)
        prefetch_matrices(x, next_place, 1, ring, ready, number + 7, has_next, FIRST, SLOTS)
        s0, s1, inverse = standardise(z0, z1, eps)  # [64, 64] each, [64]
        s0, s1 = s0.to(z.dtype), s1.to(z.dtype)
        columns = j + gl.arange(0, N, gl.SliceLayout(1, ACC))  # [64]
        gl.store(inverse_ptr + (batch * n_residues + i) * n_residues + columns, inverse, mask=columns < n_residues)
        stage(s0, output_place0)
        put(zs, [batch, i, j, 0], output_place0)
        stage(s1, output_place1)
        put(zs, [batch, i, j, N], output_place1)
        zn0 = normed(s0, vectors, here + 0, z.dtype, ACC)  # [64, 64]
        zn1 = normed(s1, vectors, here + 1, z.dtype, ACC)  # [64, 64]
        for block in range(2):
            gate = start_projection(zn0, zn1, weights, 4 + 2 * block, biases, 2 + block, ACC, BIASED)  # [64, 64]
            output = start_projection(xn0, xn1, weights, 2 * block, biases, block, ACC, BIASED)  # [64, 64]
            dy_block = wait_for_tile(ring, ready, number + 4 + block, FIRST, SLOTS).load(ACC)  # [64, 64]
            prefetch_pairs(z, next_place, block, ring, ready, number + 8 + block, has_next, FIRST, SLOTS)
            gate = warpgroup_mma_wait(2, deps=[gate])
            opening = sigmoid(gate)
            output = warpgroup_mma_wait(0, deps=[output])
            doutput = dy_block.to(gl.float32) * opening  # [64, 64]
            dgate = doutput * output * (1 - opening)  # [64, 64]
            place = staging.index(FIRST_PLACE + 2 + block)
            stage(doutput.to(z.dtype), place)
            put(doutputs, [batch, i, j, block * N], place)
            place = staging.index(FIRST_PLACE + 4 + block)
            stage(dgate.to(z.dtype), place)
            put(dprojections, [batch, i, j, 4 * WIDTH + block * N], place)
        # The products read their left operands from the staged tiles.
        left, right = gate_place0.reshape([N, N]), gate_place1.reshape([N, N])
        d0 = start_projection_gradient(left, right, weights, here + 4, ACC)  # [64, 64]
        d1 = start_projection_gradient(left, right, weights, here + 5, ACC)  # [64, 64]
        d0, d1 = warpgroup_mma_wait(0, deps=[d0, d1])
        stage(d0.to(z.dtype), gate_place0)
        put(dzn, [batch, i, j, 0], gate_place0)
        stage(d1.to(z.dtype), gate_place1)
        put(dzn, [batch, i, j, N], gate_place1)
        left, right = output_place0.reshape([N, N]), output_place1.reshape([N, N])
        d0 = start_projection_gradient(left, right, weights, here, ACC)  # [64, 64]
        d1 = start_projection_gradient(left, right, weights, here + 1, ACC)  # [64, 64]
        d0, d1 = warpgroup_mma_wait(0, deps=[d0, d1])
        d0, d1 = d0 * load_vector(vectors, here + 4, ACC), d1 * load_vector(vectors, here + 5, ACC)
        mean = ((gl.sum(d0, 1) + gl.sum(d1, 1)) / WIDTH)[:, None]  # [64, 1], as along
        s1 = xs_place1.reshape([N, N]).load(ACC)  # [64, 64]
        s0 = xs_place0.reshape([N, N]).load(ACC)  # [64, 64]
        along = ((gl.sum(d0 * s0.to(gl.float32), 1) + gl.sum(d1 * s1.to(gl.float32), 1)) / WIDTH)[:, None]
        d0 = x_inverse[:, None] * (d0 - mean - s0.to(gl.float32) * along)
        stage_transposed(d0.to(z.dtype), output_place0)
        put(dx, [batch, i, 0, j], output_place0)
        d1 = x_inverse[:, None] * (d1 - mean - s1.to(gl.float32) * along)
        stage_transposed(d1.to(z.dtype), output_place1)
        put(dx, [batch, i, N, j], output_place1)
        number += 6
        tile += step
        batch, i, j = next_place
    tma.store_wait(0)


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def triangle_project_gradient_hopper_kernel(
    da, db, zs, dz, dprojections, projection_weight, gate_weight, inverse_ptr, projection_bias_ptr, gate_bias_ptr,
    norm_weight_ptr, norm_bias_ptr, mask_ptr, mask_batch_stride, mask_i_stride, mask_j_stride, n_residues, n_tiles,
):  # fmt: skip
    """Write dz, where the output gate's part of zn's gradient is, and the gradients of projections and gates."""
    MASKED: gl.constexpr = mask_ptr is not None
    BIASED: gl.constexpr = projection_bias_ptr is not None or gate_bias_ptr is not None
    memory = fill_shared_memory(
        zs, (projection_weight, projection_bias_ptr), (gate_weight, gate_bias_ptr), (norm_weight_ptr, norm_bias_ptr),
        None, 4, BIASED, GROUPS * SLOTS, GROUPS * 2,
    )  # fmt: skip
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
def prefetch_for_gradient(
    given, place, ring, ready, number, is_needed, PART: gl.constexpr, FIRST: gl.constexpr, SLOTS: gl.constexpr
):  # fmt: skip
    """Prefetch one of the first eight loads of a tile: two halves each of zs, zn's gradient, da and db."""
    da, db, zs, dzn = given
    if PART < 2:
        prefetch_pairs(zs, place, PART, ring, ready, number, is_needed, FIRST, SLOTS)
    elif PART < 4:
        prefetch_pairs(dzn, place, PART - 2, ring, ready, number, is_needed, FIRST, SLOTS)
    elif PART < 6:
        prefetch_matrices(da, place, PART - 4, ring, ready, number, is_needed, FIRST, SLOTS)
    else:
        gl.static_assert(PART < 8)
        prefetch_matrices(db, place, PART - 6, ring, ready, number, is_needed, FIRST, SLOTS)


@gluon.jit
def project_gradient_tiles(
    given, dprojections, inverse_ptr, memory, mask, sizes, MASKED: gl.constexpr,
    BIASED: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Run one warpgroup over its tiles. Each tile loads two halves of zs, zn's gradient, da and db, then zs again."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, 64, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    FIRST: gl.constexpr = GROUP * SLOTS
    _da, _db, zs, dz = given
    weights, vectors, biases, ring, ready, staging = memory
    n_residues, n_tiles = sizes
    tile = first_tile(GROUP)
    step = gl.num_programs(0) * GROUPS
    place0, place1 = staging.index(2 * GROUP), staging.index(2 * GROUP + 1)
    batch, i, j = pairs_of_tile(tile, n_residues)
    stride = pairs_of_tile(step, n_residues)
    for part in gl.static_range(SLOTS):
        prefetch_for_gradient(given, (batch, i, j), ring, ready, part, tile < n_tiles, part, FIRST, SLOTS)
    number = 0
    while tile < n_tiles:
        here = gl.minimum(tile, 0)  # zero, hidden from the compiler: it would hold vectors in registers across tiles
        next_place, has_next = later((batch, i, j), stride, n_residues), tile + step < n_tiles
        columns = j + gl.arange(0, N, gl.SliceLayout(1, ACC))  # [64]
        bits = mask_bits(mask, batch, i, columns, n_residues, MASKED)  # [64, 1]
        s0 = wait_for_tile(ring, ready, number, FIRST, SLOTS).load(ACC)  # [64, 64]
        prefetch_for_gradient(given, (batch, i, j), ring, ready, number + 4, True, 4, FIRST, SLOTS)
        zn0 = normed(s0, vectors, here + 0, zs.dtype, ACC)  # [64, 64]
        s1 = wait_for_tile(ring, ready, number + 1, FIRST, SLOTS).load(ACC)  # [64, 64]
        prefetch_for_gradient(given, (batch, i, j), ring, ready, number + 5, True, 5, FIRST, SLOTS)
        zn1 = normed(s1, vectors, here + 1, zs.dtype, ACC)  # [64, 64]
        dzn0 = wait_for_tile(ring, ready, number + 2, FIRST, SLOTS).load(ACC).to(gl.float32)  # [64, 64]
        prefetch_for_gradient(given, (batch, i, j), ring, ready, number + 6, True, 6, FIRST, SLOTS)
        dzn1 = wait_for_tile(ring, ready, number + 3, FIRST, SLOTS).load(ACC).to(gl.float32)  # [64, 64]
        prefetch_for_gradient(given, (batch, i, j), ring, ready, number + 7, True, 7, FIRST, SLOTS)
        for block in range(4):  # two blocks of a, two of b
            gate = start_projection(zn0, zn1, weights, 8 + 2 * block, biases, 4 + block, ACC, BIASED)  # [64, 64]
            projection = start_projection(zn0, zn1, weights, 2 * block, biases, block, ACC, BIASED)  # [64, 64]
            dgated = wait_for_tile(ring, ready, number + 4 + block, FIRST, SLOTS).permute([1, 0]).load(ACC)  # [64, 64]
            # Four loads ahead is zs again: of this tile, and then of the next.
            if block < 2:
                prefetch_pairs(zs, (batch, i, j), block, ring, ready, number + 8 + block, True, FIRST, SLOTS)
            else:
                prefetch_pairs(zs, next_place, block - 2, ring, ready, number + 8 + block, has_next, FIRST, SLOTS)
            gate = warpgroup_mma_wait(2, deps=[gate])
            opening = sigmoid(gate)
            projection = warpgroup_mma_wait(0, deps=[projection])
            dprojection = masked(dgated.to(gl.float32) * opening, bits, MASKED)  # [64, 64]
            dgate = masked(dprojection * projection * (1 - opening), bits, MASKED).to(zs.dtype)  # [64, 64]
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
        s0 = wait_for_tile(ring, ready, number + 8, FIRST, SLOTS).load(ACC).to(gl.float32)  # [64, 64]
        prefetch_for_gradient(given, next_place, ring, ready, number + 12, has_next, 2, FIRST, SLOTS)
        s1 = wait_for_tile(ring, ready, number + 9, FIRST, SLOTS).load(ACC).to(gl.float32)  # [64, 64]
        prefetch_for_gradient(given, next_place, ring, ready, number + 13, has_next, 3, FIRST, SLOTS)
        inverse_place = inverse_ptr + (batch * n_residues + i) * n_residues + columns
        inverse = gl.load(inverse_place, mask=columns < n_residues, other=0.0)  # [64]
        d0, d1 = dzn0 * load_vector(vectors, here + 0, ACC), dzn1 * load_vector(vectors, here + 1, ACC)
        mean = (gl.sum(d0, 1) + gl.sum(d1, 1)) / WIDTH  # [64]
        along = (gl.sum(d0 * s0, 1) + gl.sum(d1 * s1, 1)) / WIDTH  # [64]
        d0 = inverse[:, None] * (d0 - mean[:, None] - s0 * along[:, None])
        d1 = inverse[:, None] * (d1 - mean[:, None] - s1 * along[:, None])
        stage(d0.to(zs.dtype), place0)
        put(dz, [batch, i, j, 0], place0)
        stage(d1.to(zs.dtype), place1)
        put(dz, [batch, i, j, N], place1)
        number += 10
        tile += step
        batch, i, j = next_place
    tma.store_wait(0)


class HopperBackward:
    """Hopper, bf16, 128 channels."""

    def takes(self, task: Gradients) -> bool:
        return takes_hopper(task.plan, task.problem, task.dy, task.dz)

    def suits(self, task: Gradients) -> bool:
        return suits_hopper(task.problem)

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        """Plan the kernels that write dz. Return dz and the parameters' gradients as `split_gradients` takes them."""
        plan, problem, dy, a, b, x, dz = task.plan, task.problem, task.dy, task.a, task.b, task.x, task.dz
        dtype, pairs, width = problem.z.dtype, problem.z.shape[:3], int(WIDTH.value)
        dprojections = plan.empty((*pairs, 5 * width), dtype)
        dx = plan.empty(problem.matrices_shape(), dtype)
        doutput, xs, zs = (plan.empty((*pairs, width), dtype) for _ in range(3))
        inverse = plan.empty(pairs, torch.float32)
        plan.launch(
            triangle_output_gradient_hopper_kernel, grid(plan, problem, TwoGroups()), TwoGroups(),
            dy=tiles_of_pairs(dy), z=tiles_of_pairs(problem.z), x=tiles_of_matrices(problem, x),
            zs=tiles_of_pairs(zs), xs=tiles_of_pairs(xs), doutput=tiles_of_pairs(doutput),
            dprojections=tiles_of_pairs(dprojections), dzn=tiles_of_pairs(dz), dx=tiles_of_matrices(problem, dx),
            inverse_ptr=inverse, **arguments(triangle_output_gradient_hopper_kernel, problem),
        )  # fmt: skip
        output_moments = plan_moments(plan, problem, doutput, xs)
        da, db = (problem.matrices_in_place_of(plan, unneeded) for unneeded in (doutput, xs))
        problem.plan_ab_gradient(plan, dx, a, b, da, db)
        plan.launch(
            triangle_project_gradient_hopper_kernel, grid(plan, problem, TwoGroups()), TwoGroups(),
            da=tiles_of_matrices(problem, da), db=tiles_of_matrices(problem, db), zs=tiles_of_pairs(zs),
            dz=tiles_of_pairs(dz), dprojections=tiles_of_pairs(dprojections), inverse_ptr=inverse,
            **arguments(triangle_project_gradient_hopper_kernel, problem),
        )  # fmt: skip
        moments = plan_moments(plan, problem, dprojections, zs)
        return dz, *plan_weight_gradients(plan, problem, moments, output_moments)
