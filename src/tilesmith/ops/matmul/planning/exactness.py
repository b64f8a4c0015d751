"""Which Hopper kernels can multiply exact float32, and when splitting into bf16x3 in memory pays."""

from __future__ import annotations

import torch

from tilesmith.ops.device.hopper import runs_on_hopper
from tilesmith.ops.matmul.hopper.exact_shared import UNIT
from tilesmith.ops.matmul.planning.problem import Problem


def shared_memory_kernel_takes(problem: Problem) -> bool:
    """Return whether `hopper/exact_shared` can compute the problem."""
    product, epilogue = problem.product, problem.product.epilogue
    if not runs_on_hopper(problem.plan) or problem.dtype != torch.float32 or problem.tf32 or product.described is None:
        return False
    has_other_epilogue = any(one is not None for one in (epilogue.scale_a, epilogue.scale_b, epilogue.z))
    if epilogue.activation not in ("", "relu") or has_other_epilogue:
        return False
    # The kernel loads UNIT elements at once, and counts offsets within a tile, up to 128 rows, in 32 bits.
    return all(seen.shape[-1] % int(UNIT.value) == 0 and seen.strides[-2] < 1 << 24 for seen, _ in product.described)


def register_kernel_takes(problem: Problem) -> bool:
    """Return whether `hopper/exact_registers` can compute the problem.

    The kernel computes one matrix with contiguous rows of whole units. Two transposed operands exceed its register
    budget.
    """
    product = problem.product
    if product.matrices != 1 or product.described is None or not shared_memory_kernel_takes(problem):
        return False
    y, bias = product.y, product.epilogue.bias
    has_whole_units = y.columns % int(UNIT.value) == 0 and y.strides[0] % int(UNIT.value) == 0
    has_contiguous_rows = y.strides[1] == 1 and y.operand.dtype == torch.float32
    (_, a_along), (_, b_along) = product.described
    return (
        has_whole_units and has_contiguous_rows and (bias is None or bias.strides == (1,)) and (a_along or not b_along)
    )


def pays_to_split_in_memory(problem: Problem) -> bool:
    """Return whether both operands should be split into bf16x3 in memory, before the product.

    Splitting moves 10 bytes per element and costs a launch: below 512³ that is most of the time, and splitting pays
    only if many tiles read each element.

    On an H200 in µs, split in memory and in registers: 1024×512×4096 61.9 and 47.4, 4096×4096×512 179 and 167, 2048³
    178 and 169, 4096³ 1,382 and 1,391.
    """
    products = problem.rows * problem.columns * problem.depth * problem.matrices
    if products < 4096**3 and register_kernel_takes(problem):
        return False
    # 16,384×640×128 on an H200: 54.7 µs split in memory, 47.5 split into shared memory one step ahead.
    if 16 < problem.depth <= 128 and shared_memory_kernel_takes(problem):
        return False
    return problem.is_splittable and products >= 512**3 and min(problem.rows, problem.columns) >= 512
