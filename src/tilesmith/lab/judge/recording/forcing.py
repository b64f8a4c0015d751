"""Conditions of a candidate's Python that do not depend on its arguments, inverted one at a time.

A candidate may ask whether autocast is on, which year it is, or for a random number, and launch something else then.
No list of circumstances is complete. So the judge loads the candidate once more with such expressions marked, makes a
call with one of them inverted, and judges what the call launches.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "__tilesmith_truth__"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NEUTRAL = ("device", "is_cuda", "is_leaf", "grad_fn", "requires_grad", "_version", "is_inference")  # of a tensor
_IN_TEST = (ast.Name, ast.Attribute, ast.Subscript)


class Truths:
    """Gives each marked expression its value, except the expression to invert.

    That one becomes the opposite of what it was when nothing was inverted: a random one may be otherwise by itself.
    """

    def __init__(self) -> None:
        self.turned = ""  # the name of an expression
        self._asked: dict[str, bool | None] = {}  # since the last request, in order; None: no bool, or both
        self._usual: dict[str, bool | None] = {}  # what they were when nothing was inverted

    def __call__(self, name: str, in_test: bool, value: Any) -> Any:
        if not in_test and type(value) is not bool:
            return value
        known = value if type(value) is bool else None
        self._asked[name] = known if self._asked.get(name, known) is known else None
        if name != self.turned:
            return value
        usual = self._usual.get(name)
        return not (value if usual is None else usual)

    def taken(self) -> list[str]:
        """Return the names of the expressions that were asked for since the last request."""
        found = list(self._asked)
        if not self.turned:
            self._usual |= self._asked
        self._asked.clear()
        return found


def expressions(file: str, tree: ast.Module) -> dict[str, ast.expr]:
    """Return the expressions of a file that can be inverted, by name."""
    return {f"{file}:{number}": one for number, (one, _) in enumerate(_Found(tree).marked)}


class Loader(importlib.machinery.SourceFileLoader):
    """Imports a file of a folder with its expressions marked."""

    def __init__(self, name: str, path: str, folder: Path) -> None:
        super().__init__(name, path)
        self._file = str(Path(path).relative_to(folder))

    def source_to_code(  # type: ignore[override]  # Python calls it as a method
        self, data: Any, path: Any, *, _optimize: int = -1
    ) -> Any:
        tree = ast.parse(data)
        found = enumerate(_Found(tree).marked)
        places = {id(one): (f"{self._file}:{number}", test) for number, (one, test) in found}
        marked = ast.fix_missing_locations(_Marking(places).visit(tree))
        return compile(marked, path, "exec", dont_inherit=True, optimize=_optimize)


class _Marking(ast.NodeTransformer):
    def __init__(self, places: dict[int, tuple[str, bool]]) -> None:
        self._places = places

    def visit(self, node: Any) -> Any:
        place = self._places.get(id(node))
        self.generic_visit(node)
        if place is None:
            return node
        called = ast.Name(MARK, ast.Load())
        made = ast.Call(called, [ast.Constant(place[0]), ast.Constant(place[1]), node], [])
        return ast.copy_location(made, node)


class _Found:
    """Walks through a file, and finds the expressions that mention nothing that comes from arguments."""

    def __init__(self, tree: ast.Module) -> None:
        self.marked: list[tuple[ast.expr, bool]] = []
        self._tests = set(map(id, _tests(tree)))
        kept = frozenset[str]()
        for function in [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)] * 2:
            of_module = {name for one in ast.walk(function) if isinstance(one, ast.Global) for name in one.names}
            kept |= _dependent_names(function, kept) & of_module
        self._walk(tree.body, kept)

    def _walk(self, nodes: Any, dependent: frozenset[str]) -> None:
        for node in nodes if isinstance(nodes, list) else [nodes]:
            if isinstance(node, _FUNCTIONS):
                if not _is_kernel(node):
                    self._walk(node.body, _dependent_names(node, dependent))
            elif isinstance(node, ast.Assert | ast.While | ast.AnnAssign | ast.arguments):
                self._walk([one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)], dependent)
            elif isinstance(node, ast.ClassDef):
                self._walk(node.body, dependent)
            elif isinstance(node, ast.AST):
                if self._can_turn(node, dependent):
                    self.marked.append((node, id(node) in self._tests))  # type: ignore[arg-type]  # an expression
                self._walk(list(ast.iter_child_nodes(node)), dependent)

    def _can_turn(self, node: ast.AST, dependent: frozenset[str]) -> bool:
        is_asked = isinstance(node, ast.Compare | ast.Call) or (isinstance(node, _IN_TEST) and id(node) in self._tests)
        return is_asked and not _depends(node, dependent)


def _depends(node: ast.AST, dependent: frozenset[str] | set[str]) -> bool:
    """Return whether an expression depends on values, sizes or dtypes of these names, not on where tensors lie."""
    if isinstance(node, ast.Attribute) and node.attr in _NEUTRAL:
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "type"):
        return False
    if isinstance(node, ast.Name):
        return node.id in dependent
    return any(_depends(one, dependent) for one in ast.iter_child_nodes(node))


def _tests(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what a file asks for its truth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp):
            yield node.test
        elif isinstance(node, ast.BoolOp):
            yield from node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node.operand


def _is_kernel(node: ast.AST) -> bool:
    """Return whether a function is Triton's, whose text must stay as it is."""
    return any(
        "jit" in ast.unparse(one) or "constexpr" in ast.unparse(one) for one in getattr(node, "decorator_list", ())
    )


def _dependent_names(function: Any, outer: frozenset[str]) -> frozenset[str]:
    """Return the names in a function that may come from its arguments."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    found = {*outer, *(one.arg for one in named)}
    size = 0
    while len(found) > size:
        size = len(found)
        for node in ast.walk(function):
            for targets, source in _bindings(node):
                if _depends(source, found):
                    found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return frozenset(found)


def _bindings(node: ast.AST) -> Iterator[tuple[list[ast.AST], ast.AST]]:
    """Yield what a node binds, and the expression that it binds it to."""
    if isinstance(node, ast.Assign):
        yield list(node.targets), node.value
    elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (isinstance(node, ast.AnnAssign) and node.value):
        yield [node.target], node.value  # type: ignore[misc]  # a value, as the line above says
    elif isinstance(node, ast.For | ast.comprehension):
        yield [node.target], node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield [node.optional_vars], node.context_expr


class Finder(importlib.abc.MetaPathFinder):
    """Finds the files of a candidate's folder, to be imported with their expressions marked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        found = importlib.machinery.PathFinder.find_spec(name, path or [str(self._folder)])
        file = getattr(found, "origin", None)
        if found is None or not file or not str(file).startswith(str(self._folder)) or not file.endswith(".py"):
            return None
        found.loader = Loader(name, file, self._folder)
        return found


def mark_imports(folder: Path, truths: Truths) -> None:
    """Let imports from a folder mark their expressions, for `truths` to decide about."""
    setattr(builtins, MARK, truths)
    sys.dont_write_bytecode = True
    for name in [
        name for name, one in sys.modules.items() if str(getattr(one, "__file__", "")).startswith(str(folder))
    ]:
        del sys.modules[name]  # they are imported again
    sys.meta_path[:] = [Finder(folder), *(one for one in sys.meta_path if not isinstance(one, Finder))]
