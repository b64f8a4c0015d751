"""Record the launches of one product y = act(z) + addend, with z = Σ a·b · scales + bias.

Σ is over the summed batch dimensions, if there are any. `choose.py` lists the forms: a form is a kernel and how it is
launched. To add one, see there.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
import triton

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.matmul.kernels.split_k_sum import sum_config, sum_partial_products_kernel
from tilesmith.ops.matmul.matrices import Matrix, multiple
from tilesmith.ops.matmul.planning.alignment import with_aligned_operands
from tilesmith.ops.matmul.planning.choose import choose
from tilesmith.ops.matmul.planning.problem import Epilogue, Problem, Product
from tilesmith.ops.runtime.layout import as_rows
from tilesmith.ops.runtime.plan import Operand, Plan


def plan_product(plan: Plan, product: Product) -> None:
    """Record the launches: copies of unaligned operands where they pay, the GEMM, and the sum of partial products.

    `merged` has three batch dimensions, for the GEMM; `product` has the caller's, for the sum.
    """
    if product.y.strides[0] == 1 and product.y.strides[1] != 1 and product.epilogue == Epilogue():
        product = product.transposed()  # yᵀ = bᵀ·aᵀ has contiguous rows; an epilogue is laid out for y
    merged = with_aligned_operands(plan, product.merged())
    form, config = choose(Problem(plan, merged))
    partials = prod(product.batch[: product.summed]) * form.split_k(config)
    if partials == 1:  # 0, for an empty sum: the kernel that sums writes zeros and the epilogue
        form.plan(plan, merged, config)
        return
    kept = product.batch[product.summed :]
    rows, columns = product.y.rows, product.y.columns
    dtype = torch.float64 if product.a.operand.dtype == torch.float64 else torch.float32
    sums = plan.empty((partials * prod(kept), rows, columns), dtype)
    size = rows * columns
    strides = (merged.batch[1] * merged.batch[2] * size, merged.batch[2] * size, size)
    y = Matrix(sums, rows, columns, (columns, 1), strides)
    form.plan(plan, replace(merged, y=y, epilogue=Epilogue()), config)
    _plan_sum(plan, product, sums, partials, kept)


def _plan_sum(plan: Plan, product: Product, sums: Operand, partials: int, kept: tuple[int, ...]) -> None:
    """Record the launch that sums the partial products and applies the epilogue. `kept`: the batch of the result."""
    y = product.y
    walk = as_rows((*kept, 1), (*y.batch_strides[product.summed :], 0))  # a row of one column: only the batch counts
    config = sum_config(y.columns, partials)
    tiles = triton.cdiv(y.rows, config.ROWS) * triton.cdiv(y.columns, config.COLUMNS)
    plan.launch(
        sum_partial_products_kernel, (tiles * prod(kept),), config,
        partials_ptr=sums, y_ptr=y.operand, z_ptr=product.epilogue.z,
        y_strides=(*walk.strides[0], *y.strides), inner_sizes=walk.sizes[1:],
        n_partials=partials, partial_stride=prod(kept) * y.rows * y.columns, n_rows=y.rows, n_columns=y.columns,
        COLUMNS_MULTIPLE=multiple(y.columns, 1), COMPUTE=compute_dtype(product.a.operand.dtype),
        **product.epilogue.arguments(),
    )  # fmt: skip
