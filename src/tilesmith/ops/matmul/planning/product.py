"""Put one product y = act(a·b · scales + bias) + addend on a plan."""

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
    """Put the product on the plan: its tiles, and the sum of partial products where there are several."""
    if product.y.strides[0] == 1 and product.y.strides[1] != 1 and product.epilogue == Epilogue():
        product = product.transposed()  # neighbours in a row of the result are now neighbours in memory
    merged = with_aligned_operands(plan, product.merged())
    form, config = choose(Problem(plan, merged))
    partials = prod(product.batch[: product.summed]) * form.split_k(config)
    if partials == 1:
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
    """Put the sum of partial products on the plan, with the epilogue."""
    y = product.y
    walk = as_rows((*kept, 1), (*y.batch_strides[product.summed :], 0))
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
