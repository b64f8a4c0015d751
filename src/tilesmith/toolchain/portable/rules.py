"""What the text of a kernel may contain, so that running it in the interpreter cannot do anything but compute.

The interpreter executes a kernel as Python. So the text is checked against a list of what is allowed: statements and
expressions of Triton's language, names with known values, attributes of Triton's modules and of its tensors.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from tilesmith.toolchain.portable.values import holds_values, is_in_the_language, is_known_module

BUILTINS = frozenset(
    {"range", "len", "min", "max", "abs", "int", "float", "bool", "str", "tuple", "list", "isinstance", "print", "zip"}
)
# Options of a launch that choose among right programs. Others write files, link libraries, replace the kernel or change
# the target.
LAUNCH_OPTIONS = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "sched4reg", "enable_reflect_ftz", "debug",
     "launch_cooperative_grid", "launch_pdl", "clc", "sanitize_overflow", "max_num_imprecise_acc_default",
     "min_shared_mem", "waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint", "allow_flush_denorm",
     "num_consumer_groups", "num_buffers_warp_spec", "reg_dec_producer", "reg_inc_consumer"}
)  # fmt: skip
_STATEMENTS = (
    ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.With, ast.withitem, ast.Expr,
    ast.Pass, ast.Assert,
)  # fmt: skip
_EXPRESSIONS = (
    ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.JoinedStr,
    ast.FormattedValue, ast.Constant, ast.Attribute, ast.Subscript, ast.Starred, ast.Name, ast.List, ast.Tuple,
    ast.Slice, ast.ListComp, ast.comprehension, ast.keyword,
)  # fmt: skip
_PARTS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.arguments, ast.arg)
_RESERVED = "_interpreted_"
# numpy's arrays, attributes by string, and what a @triton.jit function can do. No field of a named tuple opens these.
_HIDDEN = frozenset({"handle", "data", "format", "format_map", *(one for one in dir(JITFunction) if one[0] != "_")})


def _public(*kinds: type) -> frozenset[str]:
    names = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    return frozenset(names - _HIDDEN)


# `type`, `shape` and `dtype` are set on instances. Methods of numbers and texts compute, and do nothing else.
ATTRIBUTES = _public(tl.tensor, tl.dtype, tl.pointer_type, tl.block_type, tl.constexpr, tl.tensor_descriptor, tl.tuple)
ATTRIBUTES |= _public(int, float, str)
ATTRIBUTES |= {"type", "shape", "dtype", "T", "block_shape", "strides", "base", "element_ty", "scalar", "value"}


@cache
def gluon_attributes() -> frozenset[str]:
    """Return what values of Gluon's language have: descriptors of memory, and layouts."""
    homes = [one for name, one in list(sys.modules.items()) if name.startswith("triton.experimental.gluon.language")]
    kinds = {kind for home in homes for kind in vars(home).values() if isinstance(kind, type)}
    kinds = {kind for kind in kinds if issubclass(kind, tl.core.base_value | tl.core.base_type) or is_dataclass(kind)}
    fields = {name for kind in kinds for name in getattr(kind, "__annotations__", {}) if not name.startswith("_")}
    return _public(*kinds) | (fields - _HIDDEN)


class KernelRefused(Exception):
    """The text is no kernel. `line` counts from the `def` line, which is 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def parsed(text: str, names: Mapping[str, Any], *, gluon: bool = False) -> ast.Module:
    """Return the parsed text of a kernel. Raises KernelRefused for anything that is not Triton's language."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise KernelRefused(f"syntax error: {error}", getattr(error, "lineno", None) or 1) from None
    if len(module.body) != 1 or not isinstance(module.body[0], ast.FunctionDef):
        raise KernelRefused("the text is not one function", 1)
    definition = module.body[0]
    if definition.decorator_list:
        raise KernelRefused("the text has a decorator", 1)
    _Checker(definition, names, gluon).check()
    return module


_TAKE_TEXTS = frozenset({"static_assert", "static_print", "device_assert", "device_print", "print"})


def depends_on_types(text: str) -> bool:
    """Return whether a kernel asks for the type or text of a value, where the interpreter and the compiler differ."""
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    taken = [node.msg for node in ast.walk(tree) if isinstance(node, ast.Assert) and node.msg is not None]
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in ("isinstance", "str"):
            return True
        if ast.unparse(call.func).rpartition(".")[2] in _TAKE_TEXTS:
            taken += call.args
    harmless = {id(node) for one in taken for node in ast.walk(one)}
    return any(isinstance(node, ast.JoinedStr) and id(node) not in harmless for node in ast.walk(tree))


def compares_layouts(texts: Iterable[str]) -> bool:
    """Return whether Gluon kernels may compare layouts of values: the interpreter's values have none of their own."""
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    named = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
    compared = any(
        isinstance(node, ast.Compare)
        and any(isinstance(one, ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn) for one in node.ops)
        and not any(isinstance(one, ast.Constant) for one in [node.left, *node.comparators])
        for node in nodes
    )
    return compared and bool(named & {"layout", "to_linear_layout", "get_reg_layout", "set_auto_layout"})


class _Checker:
    def __init__(self, definition: ast.FunctionDef, names: Mapping[str, Any], gluon: bool) -> None:
        self._definition = definition
        self._names = names
        arguments = definition.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        given += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        self._parameters = {one.arg for one in given}
        stored = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and _is_stored(node)}
        self._locals = self._parameters | stored
        self._fields = {name for value in names.values() for name in getattr(value, "_fields", ())}
        self._fields |= gluon_attributes() if gluon else set()

    def check(self) -> None:
        for name in self._locals:
            if name.startswith(("__", _RESERVED)):
                raise KernelRefused(f"the name {name}", 1)
        for default in [*self._definition.args.defaults, *filter(None, self._definition.args.kw_defaults)]:
            self._is_simple(default)
        annotated = [one.annotation for one in ast.walk(self._definition.args) if isinstance(one, ast.arg)]
        for annotation in [*annotated, self._definition.returns]:
            if annotation is not None:
                self._is_simple(annotation)
        for statement in self._definition.body:
            for node in ast.walk(statement):
                self._visit(node)

    def _is_simple(self, expression: ast.expr) -> None:
        """Refuse a default or annotation that would run code when the function is defined."""
        simple = (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.Tuple, ast.Call, ast.keyword)
        for node in ast.walk(expression):
            if not isinstance(node, (*simple, ast.expr_context, ast.unaryop)):
                raise KernelRefused(f"{type(node).__name__} outside the body", expression.lineno)
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] != "constexpr":
                raise KernelRefused("a call outside the body", expression.lineno)
            if isinstance(node, ast.Name) and node.id not in {*self._names, *BUILTINS}:
                raise KernelRefused(f"the unknown name {node.id}", expression.lineno)
            self._visit(node)

    def _visit(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", 1)
        if not isinstance(node, (*_STATEMENTS, *_EXPRESSIONS, *_PARTS)):
            raise KernelRefused(f"{type(node).__name__}, which is not in Triton's language", line)
        if isinstance(node, ast.Name):
            self._visit_name(node, line)
        elif isinstance(node, ast.Attribute):
            self._visit_attribute(node, line)

    def _visit_name(self, node: ast.Name, line: int) -> None:
        if node.id not in self._locals and node.id not in self._names and node.id not in BUILTINS:
            raise KernelRefused(f"the unknown name {node.id}", line)

    def _visit_attribute(self, node: ast.Attribute, line: int) -> None:
        if node.attr.startswith("_") or not isinstance(node.ctx, ast.Load):
            raise KernelRefused(f"the attribute {node.attr}", line)
        owner = self._global_value(node.value)
        if owner is not None and not isinstance(owner, int | float | str):
            self._global_attribute(owner, node, line)
        elif node.attr not in ATTRIBUTES and (node.attr in _HIDDEN or node.attr not in self._fields):
            raise KernelRefused(f"the attribute {node.attr}, which no tensor has", line)

    def _global_value(self, node: ast.AST) -> Any:
        """Return the value of a dotted name that starts with a global module; None for everything else."""
        if isinstance(node, ast.Name):
            value = None if node.id in self._locals else self._names.get(node.id)
            return value if isinstance(value, ModuleType) else None
        if isinstance(node, ast.Attribute):
            owner = self._global_value(node.value)
            return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
        return None

    @staticmethod
    def _global_attribute(owner: Any, node: ast.Attribute, line: int) -> None:
        value = getattr(owner, node.attr, None)
        if isinstance(owner, ModuleType) and holds_values(owner) and hasattr(owner, node.attr):
            return
        allowed = is_known_module(value) if isinstance(value, ModuleType) else is_in_the_language(value)
        if value is None or not allowed:
            raise KernelRefused(f"{ast.unparse(node)}, which is not in Triton's language", line)


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)
