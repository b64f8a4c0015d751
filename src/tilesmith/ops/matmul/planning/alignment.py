"""Copy operands that TMA cannot walk, where the GEMM by TMA saves more time than the copies take."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.ops.matmul.kernels.realign import plan_realign
from tilesmith.ops.matmul.planning.by_pointers import FEW, Pointers
from tilesmith.ops.matmul.planning.problem import Problem, Product
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.plan import Plan

SHALLOW = 32  # a depth up to which loads by pointers take little of the time
MANY_RESULTS = 1 << 22  # as many results make copies pay even so: 14336×1536×6 in bf16 on an H200 20.5 µs, 33.1 without


def with_aligned_operands(plan: Plan, product: Product) -> Product:
    """Return the product with copies of those operands that TMA cannot walk; the product itself where none pays."""
    if not _pays_to_copy(Problem(plan, product)):
        return product
    count, stride = product.matrices, product.a.batch_strides[0]
    walked = {
        "a": product.a.described(count, stride),
        "b": product.b.transposed().described(count, product.b.batch_strides[0]),
    }
    names = [name for name, side in walked.items() if side is None]
    copies = plan_realign(plan, [getattr(product, name) for name in names], count)
    return replace(product, **dict(zip(names, copies, strict=True)))


def _pays_to_copy(problem: Problem) -> bool:
    product = problem.product
    asks_for_pointers = dict(dispatch.state().overrides).get("form") == Pointers().name
    if asks_for_pointers or not (problem.on_hopper and problem.is_half) or problem.is_describable:
        return False
    rows, columns = product.y.rows, product.y.columns
    has_many = product.depth > SHALLOW or rows * columns * product.matrices >= MANY_RESULTS
    return not product.nested and product.depth > 0 and min(rows, columns) > FEW and has_many
