"""Mutants of a Triton file: one mistake of a learner each, made in the syntax tree of the model solution."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import chain

from tilesmith.workshop.mutants.mutant import Edit, Mutant, mutants_of

Change = tuple[str, ast.AST, str]  # the kind of mistake, the node to replace, and the new text

_BOUNDS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "%", ast.Mod: "//",
}  # fmt: skip
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)
_SIGNS: dict[type[ast.operator], str] = {ast.Sub: "-", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_OTHER_FUNCTIONS = {
    "max": "min", "sum": "max", "maximum": "minimum", "exp": "exp2", "log": "log2", "rsqrt": "sqrt",
    "argmax": "argmin", "atomic_add": "store", "sigmoid": "exp",
}  # fmt: skip
_HALF = {"float32": "float16", "int64": "int32"}


def triton_mutants(source: str) -> list[Mutant]:
    """Return every mutant of a Triton file."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def edit(change: Change) -> Edit:
        kind, node, text = change
        start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]  # every changed node has a place
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return Edit(kind, start, end, text)

    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    kernels = [node for node in functions if any("jit" in ast.unparse(one) for one in node.decorator_list)]
    hosts = [node for node in functions if node not in kernels]
    changes = chain(
        (change for kernel in kernels for change in _in_kernel(kernel)),
        (change for host in hosts for change in _in_host(host)),
    )
    return [one for one in mutants_of(source, map(edit, changes)) if _parses(one.source)]


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _in_kernel(kernel: ast.FunctionDef) -> Iterator[Change]:
    runtime = {one.arg for one in kernel.args.args if one.annotation is None}
    for node in chain.from_iterable(map(ast.walk, kernel.body)):
        for rule in _RULES:
            yield from rule(node)
        yield from _of_strides(node, runtime)
    yield from _of_statements(kernel)


def _in_host(host: ast.FunctionDef) -> Iterator[Change]:
    for node in chain.from_iterable(map(ast.walk, host.body)):
        for rule in (_of_grids, _of_shapes, _of_allocations, _of_dtypes):
            yield from rule(node)


def _of_masks(node: ast.AST) -> Iterator[Change]:
    """Drop a mask, an `other`, or one condition of a mask; give masked lanes another value."""
    if isinstance(node, ast.Call) and _function(node) in ("load", "store", "atomic_add"):
        given = {one.arg: one.value for one in node.keywords}
        if "mask" in given:
            yield "drop-mask", node, _without(node, "mask", "other")
        if "other" in given:
            yield "drop-other", node, _without(node, "other")
            infinite = "inf" in ast.unparse(given["other"])
            yield "other", given["other"], "0.0" if infinite else "1.0"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        yield "drop-condition", node, f"({ast.unparse(node.left)})"
        yield "drop-condition", node, f"({ast.unparse(node.right)})"
    elif isinstance(node, ast.Call) and _function(node) == "where":
        yield "drop-where", node, f"({ast.unparse(node.args[1])})"


def _of_bounds(node: ast.AST) -> Iterator[Change]:
    """Move a bound by one: of a comparison or of a loop."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BOUNDS:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield "bound", node, f"{left} {_BOUNDS[type(node.ops[0])]} {right}"
        yield "bound", node.comparators[0], f"({right} - 1)"
    elif isinstance(node, ast.Call) and _function(node) in ("range", "static_range"):
        arguments = [ast.unparse(one) for one in node.args]
        step = arguments[2] if len(arguments) == 3 else "1"
        first, last = (0, 1) if len(arguments) > 1 else (None, 0)
        if first is not None:
            yield "loop", node.args[first], f"{arguments[first]} + {step}"
        yield "loop", node.args[last], f"({arguments[last]} - {step})"
        yield "loop", node.args[last], f"({arguments[last]} + {step})"


def _of_axes(node: ast.AST) -> Iterator[Change]:
    """Take the wrong axis: of a reduction, a program number or a new dimension. Forget a transpose."""
    if isinstance(node, ast.keyword) and node.arg in ("axis", "dim") and isinstance(node.value, ast.Constant):
        yield "axis", node.value, "0" if node.value.value == 1 else "1"
    elif isinstance(node, ast.Call) and _function(node) in ("program_id", "num_programs"):
        for other in {0, 1, 2} - {ast.literal_eval(node.args[0])}:
            yield "axis", node.args[0], str(other)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.slice) in ("(:, None)", ":, None"):
        yield "axis", node, f"({ast.unparse(node.value)})[None, :]"
    elif isinstance(node, ast.Subscript) and ast.unparse(node.slice) in ("(None, :)", "None, :"):
        yield "axis", node, f"({ast.unparse(node.value)})[:, None]"
    elif isinstance(node, ast.Call) and _function(node) == "trans":
        yield "drop-transpose", node, ast.unparse(node.args[0])


def _of_dtypes(node: ast.AST) -> Iterator[Change]:
    """Drop a cast; compute in half the precision."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        yield "drop-cast", node, ast.unparse(node.func.value)
    elif isinstance(node, ast.Attribute) and node.attr in _HALF and ast.unparse(node.value) in ("tl", "torch"):
        yield "dtype", node, f"{ast.unparse(node.value)}.{_HALF[node.attr]}"


def _of_arithmetic(node: ast.AST) -> Iterator[Change]:
    """Drop an eps; swap operands; take another operation, function or constant."""
    if isinstance(node, ast.BinOp):
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        if isinstance(node.op, ast.Add) and "eps" in right:
            yield "drop-eps", node, f"({left})"
        if type(node.op) in _ARITHMETIC and "_ptr" not in left:  # an address before the tensor fails everywhere
            yield "operation", node, f"(({left}) {_ARITHMETIC[type(node.op)]} ({right}))"
        if isinstance(node.op, _ORDERED):
            yield "swap", node, f"(({right}) {_SIGNS[type(node.op)]} ({left}))"
        if isinstance(node.op, ast.Mult):
            yield "drop-factor", node, f"({left})"
            yield "drop-factor", node, f"({right})"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, arguments = node.func.attr, [ast.unparse(one) for one in node.args]
        if name in _OTHER_FUNCTIONS and ast.unparse(node.func.value) == "tl":
            yield "function", node.func, f"tl.{_OTHER_FUNCTIONS[name]}"
        if name == "dot":
            yield "swap", node, _called(node, [arguments[1], arguments[0], *arguments[2:]])
            if len(arguments) > 2:
                yield "drop-accumulator", node, _called(node, arguments[:2])
        elif name == "where":
            yield "swap", node, _called(node, [arguments[0], arguments[2], arguments[1]])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", node, f"({ast.unparse(node.operand)})"


def _of_strides(node: ast.AST, runtime: set[str]) -> Iterator[Change]:
    """Move a stride by one, and a program's first element by one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side in (node.left, node.right):
            if isinstance(side, ast.Name) and side.id in runtime and not side.id.endswith("_ptr"):
                yield "stride", side, f"({side.id} + 1)"
    elif isinstance(node, ast.Call) and _function(node) == "arange":
        yield "offset", node, f"({ast.unparse(node)} + 1)"


def _of_statements(kernel: ast.FunctionDef) -> Iterator[Change]:
    """Leave out a store, a barrier, or an assignment to a variable that has a value already."""
    assigned: set[str] = set()
    for node in _statements(kernel.body):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield ("drop-barrier" if "barrier" in ast.unparse(node) else "drop-store"), node, "pass"
        elif isinstance(node, ast.AugAssign):
            target, value = ast.unparse(node.target), ast.unparse(node.value)
            yield "drop-statement", node, "pass"
            yield "drop-accumulator", node, f"{target} = {value}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id in assigned:
                yield "drop-statement", node, "pass"
            assigned.add(node.targets[0].id)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse"):
            yield from _statements(getattr(node, part, []))


def _of_grids(node: ast.AST) -> Iterator[Change]:
    """Launch a program too few or too many, round down, or swap the axes of the grid."""
    if isinstance(node, ast.Call) and _function(node) == "cdiv":
        first, second = map(ast.unparse, node.args)
        yield "grid", node, f"(({first}) // ({second}))"
    launched = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)
    grid = node.slice if launched else node.value if isinstance(node, ast.Assign) and _is_grid(node) else None  # type: ignore[attr-defined]  # told by `launched`
    if isinstance(grid, ast.Tuple):
        parts = [ast.unparse(part) for part in grid.elts]
        for part, text in zip(grid.elts, parts, strict=True):
            yield "grid", part, f"({text} - 1)"
            yield "grid", part, f"({text} + 1)"
        for number in range(len(parts) - 1):
            swapped = [*parts[:number], parts[number + 1], parts[number], *parts[number + 2 :]]
            yield "grid", grid, f"({', '.join(swapped)})"


def _is_grid(node: ast.Assign) -> bool:
    return "grid" in ast.unparse(node.targets[0])


def _of_shapes(node: ast.AST) -> Iterator[Change]:
    """Take the stride or size of another dimension."""
    if isinstance(node, ast.Call) and _function(node) == "stride" and node.args:
        dimension = ast.literal_eval(node.args[0])
        yield "stride", node, f"{ast.unparse(node.func)}({1 - dimension if dimension in (0, 1) else dimension + 1})"
        yield "stride", node, f"({ast.unparse(node)} + 1)"
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(".shape"):
        number = ast.literal_eval(node.slice)
        if number in (0, 1):
            yield "axis", node.slice, str(1 - number)


def _of_allocations(node: ast.AST) -> Iterator[Change]:
    """Forget to clear memory; forget to make an argument contiguous."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("zeros", "zeros_like"):
            yield "uncleared", node.func, ast.unparse(node.func).replace("zeros", "empty")
        elif node.func.attr == "contiguous":
            yield "drop-contiguous", node, ast.unparse(node.func.value)


def _function(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def _called(node: ast.Call, arguments: list[str]) -> str:
    given = [*arguments, *(ast.unparse(one) for one in node.keywords)]
    return f"{ast.unparse(node.func)}({', '.join(given)})"


def _without(node: ast.Call, *names: str) -> str:
    kept = [one for one in node.keywords if one.arg not in names]
    return ast.unparse(ast.Call(node.func, node.args, kept))


_RULES: tuple[Callable[[ast.AST], Iterator[Change]], ...] = (
    _of_masks, _of_bounds, _of_axes, _of_dtypes, _of_arithmetic,
)  # fmt: skip
