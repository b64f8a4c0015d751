"""Rewriting a kernel's source, so that Python gives it the meaning that Triton's compiler gives it.

Python differs: `a and b` or `a < b < c` would use a block as a condition, an assigned number would stay a Python
number, a loop variable would have no `.to`. Such expressions become calls. The new function keeps the kernel's globals,
closure, defaults, file and line numbers, and adds nothing to its module.
"""

from __future__ import annotations

import ast
import builtins
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime.jit import JITFunction

from tilesmith.toolchain.interpreter.loops import Loop, deciding_names

_PREFIX = "_interpreted_"
_rewritten_code: WeakSet[CodeType] = WeakSet()
_FACTORY = f"{_PREFIX}factory"
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Is: "is_",
    ast.IsNot: "is_not",
}


@functools.cache
def _jit_function_of(function: FunctionType) -> JITFunction:
    return JITFunction(function)


def as_jit_function(kernel: Any) -> JITFunction:
    """Return the compilable form of a @triton.jit function, also where TRITON_INTERPRET replaced it."""
    return kernel if isinstance(kernel, JITFunction) else _jit_function_of(kernel.fn)


def is_rewritten(code: CodeType) -> bool:
    """Whether this is the code of a rewritten kernel."""
    return code in _rewritten_code


class Rewriter:
    """Rewrites each function once. `replacements` maps Triton functions, by identity, to their form here.

    `by_name` maps some of them by module and name, for copies of Triton's modules.
    """

    def __init__(
        self,
        semantic: TritonSemantic,
        begin_loop: Callable[[bool], Loop],
        replacements: Mapping[int, Callable[..., Any]],
        by_name: Mapping[tuple[str, str], Callable[..., Any]],
    ) -> None:
        self._helpers = _helpers(semantic) | {"loop": begin_loop}
        self._replacements = replacements
        self._by_name = by_name
        self._rewritten: WeakKeyDictionary[FunctionType, tuple[str, FunctionType]] = WeakKeyDictionary()

    def rewritten(self, kernel: Any) -> FunctionType:
        """Return the Python function to call for a @triton.jit function."""
        kernel = as_jit_function(kernel)
        source, function = self._rewritten.get(kernel.fn, (None, None))
        if function is None or source != kernel.src:
            function = self._rewrite(kernel)
            self._rewritten[kernel.fn] = (kernel.src, function)
        return function

    def _rewrite(self, kernel: Any) -> FunctionType:
        original: FunctionType = kernel.fn
        cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
        bound = {f"{_PREFIX}{name}": helper for name, helper in self._helpers.items()}
        bound |= {name: value for name, value in self._shadowing(original) if name not in cells}
        cells |= {name: CellType(value) for name, value in bound.items()}
        code = _compile(kernel, list(cells))
        _rewritten_code.add(code)
        function = FunctionType(
            code,
            original.__globals__,
            original.__name__,
            original.__defaults__,
            tuple(cells[name] for name in code.co_freevars),
        )
        function.__kwdefaults__ = original.__kwdefaults__
        return function

    def _shadowing(self, original: FunctionType) -> Iterator[tuple[str, Any]]:
        """Return the kernel's global names that need another value: `min`, or `from triton.language import load`."""
        for name in original.__code__.co_names:
            value = original.__globals__.get(name, getattr(builtins, name, None))
            called = getattr(value, "__module__", ""), getattr(value, "__name__", "")
            if id(value) in self._replacements:
                yield name, self._replacements[id(value)]
            elif called in self._by_name:
                yield name, self._by_name[called]


def _compile(kernel: Any, free_names: list[str]) -> CodeType:
    """Return the kernel's code as an inner function with these free names."""
    definition = _Transformer().visit(ast.parse(kernel.src)).body[0]
    definition.decorator_list = []
    ast.fix_missing_locations(definition)
    ast.increment_lineno(definition, _definition_line(kernel) - 1)
    module = ast.parse(f"def {_FACTORY}({', '.join(free_names)}): pass")
    factory = module.body[0]
    assert isinstance(factory, ast.FunctionDef)
    factory.body = [definition]
    ast.fix_missing_locations(module)
    outer = _inner_code(compile(module, kernel.fn.__code__.co_filename, "exec"), _FACTORY)
    return _inner_code(outer, definition.name)


def _inner_code(code: CodeType, name: str) -> CodeType:
    return next(inner for inner in code.co_consts if isinstance(inner, CodeType) and inner.co_name == name)


def _definition_line(kernel: Any) -> int:
    """Return the line of the kernel's `def`; decorators come before it, inner functions after."""
    beginning = next(index for index, line in enumerate(kernel.raw_src) if re.match(r"\s*def\s", line))
    return int(kernel.starting_line_number) + beginning


class _Transformer(ast.NodeTransformer):
    """Replaces expressions that Python and Triton read differently, and lets a `Loop` watch each `while`."""

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        names, reads_memory = deciding_names(node)
        self.generic_visit(node)
        loop = f"{_PREFIX}loop_{node.lineno}"
        begin = ast.Assign([ast.Name(loop, ast.Store())], _call("loop", ast.Constant(reads_memory)))
        values = ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load())
        node.test = ast.Call(ast.Name(loop, ast.Load()), [node.test, _delayed(values)], [])
        return [ast.copy_location(begin, node), node]

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = _call("assigned", node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and not ast.unparse(node.annotation).endswith("constexpr"):
            node.value = _call("assigned", node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "all_of" if isinstance(node.op, ast.And) else "any_of"
        return ast.copy_location(_call(name, *(_delayed(value) for value in node.values)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call("negated", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        names = ast.Tuple([ast.Constant(_COMPARISONS[type(each)]) for each in node.ops], ast.Load())
        return ast.copy_location(_call("chained", names, node.left, *node.comparators), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "value" and isinstance(node.ctx, ast.Load):  # of a constant, which is a plain value here
            return ast.copy_location(_call("value_of", node.value), node)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        node.test = _call("holds", node.test)
        return node


def _call(helper: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(f"{_PREFIX}{helper}", ast.Load()), list(arguments), [])


def _delayed(value: ast.expr) -> ast.expr:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, value)


def _helpers(semantic: TritonSemantic) -> dict[str, Callable[..., Any]]:
    def assigned(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(assigned(element) for element in value)
        return semantic.to_tensor(value, False)

    def combined(values: Iterator[Any], decisive: bool, combine: Callable[[Any, Any], Any]) -> Any:
        """Evaluate compile-time values first; combine the remaining tensors elementwise."""
        tensors, last = [], None
        for last in values:
            if isinstance(last, tl.tensor):
                tensors.append(last)
            elif bool(last) is decisive:
                return last
        if not tensors:
            return last
        result = tensors.pop()
        while tensors:
            result = combine(tensors.pop(), result)
        return result

    def all_of(*delayed: Callable[[], Any]) -> Any:
        return combined((value() for value in delayed), False, semantic.logical_and)

    def any_of(*delayed: Callable[[], Any]) -> Any:
        return combined((value() for value in delayed), True, semantic.logical_or)

    def negated(value: Any) -> Any:
        return semantic.not_(value) if isinstance(value, tl.tensor) else not value

    def chained(names: tuple[str, ...], *operands: Any) -> Any:
        pairs = zip(names, operands, operands[1:], strict=False)
        results = (getattr(operator, name)(left, right) for name, left, right in pairs)
        return combined(results, False, semantic.logical_and)

    def holds(condition: Any) -> bool:
        return bool(condition.handle) if isinstance(condition, tl.tensor) else bool(condition)

    def value_of(constant: Any) -> Any:
        return getattr(constant, "value", constant)

    helpers = (assigned, all_of, any_of, negated, chained, holds, value_of)
    return {helper.__name__: helper for helper in helpers}
