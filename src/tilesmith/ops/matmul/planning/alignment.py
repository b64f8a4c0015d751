"""Copy operands that TMA cannot walk, where the GEMM then saves more time than the copies take.

On an H200, with the copies, in µs; by pointers; and by cuBLAS: 777×1023×2047 in bf16 15.2, 54.9, 38.0.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.ops.matmul.kernels.realign import plan_realign
from tilesmith.ops.matmul.matrices import Matrix
from tilesmith.ops.matmul.planning.by_pointers import FEW, Pointers, is_shallow
from tilesmith.ops.matmul.planning.problem import Problem, Product
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.plan import Plan

SHALLOW = 32  # a depth up to which loads by pointers take little of the time
MANY_RESULTS = 1 << 22  # as many results make copies pay even so: 14336×1536×6 in bf16 on an H200 20.5 µs, 33.1 without


def with_aligned_operands(plan: Plan, product: Product) -> Product:
    """Return the product with copies of those operands that TMA cannot walk; the product itself where none pays."""
    problem = Problem(plan, product)
    asks_for_pointers = dict(dispatch.state().overrides).get("form") == Pointers().name
    if (
        is_shallow(problem)
        or asks_for_pointers
        or not problem.on_hopper
        or problem.is_describable
        or product.nested
        or not product.depth
    ):
        return product
    if problem.is_exact:
        return _with_depth_in_rows(plan, product) if min(product.y.rows, product.y.columns) > 16 else product
    return _copied(plan, product) if (problem.is_half or problem.tf32) and _pays(product) else product


def _copied(plan: Plan, product: Product) -> Product:
    """Return the product with copies of the operands that TMA cannot walk, in the order of their memory."""
    sides = {name: getattr(product, name) for name in _unwalkable(product)}
    turned = {name: side.strides[1] != 1 and side.strides[0] == 1 for name, side in sides.items()}
    seen = [side.transposed() if turned[name] else side for name, side in sides.items()]
    copies = {
        name: copy.transposed() if turned[name] else copy
        for name, copy in zip(sides, plan_realign(plan, seen, product.matrices), strict=True)
    }
    return replace(product, a=copies.get("a", product.a), b=copies.get("b", product.b))


def _with_depth_in_rows(plan: Plan, product: Product) -> Product:
    """Return the product with copies of float32 operands whose rows lie along depth and are whole units, with zeros.

    The exact kernels load whole units of depth. An odd depth makes both operands longer, so both are copied.
    """
    names = ["a", "b"] if product.depth % 4 else _unwalkable(product)
    seen = [product.a if name == "a" else product.b.transposed() for name in names]
    copies = {
        name: replace(copy, columns=copy.strides[0])
        for name, copy in zip(names, plan_realign(plan, seen, product.matrices), strict=True)
    }
    return replace(product, a=copies.get("a", product.a), b=copies["b"].transposed() if "b" in copies else product.b)


def _unwalkable(product: Product) -> list[str]:
    """Return the names of the operands that TMA cannot walk."""
    sides = {"a": product.a, "b": product.b.transposed()}
    return [name for name, side in sides.items() if side.described(product.matrices, side.batch_strides[0]) is None]


def _pays(product: Product) -> bool:
    """Return whether copies pay: those of a small operand always, those of a large one if it is read several times."""
    sizes = {"a": _elements(product.a, product), "b": _elements(product.b, product)}
    copied = sum(sizes[name] for name in _unwalkable(product))
    if product.depth <= SHALLOW:
        return product.y.rows * product.y.columns * product.matrices >= MANY_RESULTS
    return 4 * copied <= sum(sizes.values()) or min(product.y.rows, product.y.columns) > FEW


def _elements(side: Matrix, product: Product) -> int:
    return side.rows * side.columns * (1 if side.is_shared else product.matrices)
