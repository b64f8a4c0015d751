"""Split a file with a SPEC: the task keeps the definition, the inputs and the cost; the candidate keeps the operator.

The judge runs the task's part. The operator and its kernels run only in the candidate's process, which does not see the
definition. Both parts keep the line numbers of the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from tilesmith.lab.judge.task import TaskError

_OF_THE_CANDIDATE = ("op", "rivals")


@dataclass(frozen=True)
class Parts:
    """The texts of task and candidate, and the name of the candidate's function."""

    task: str
    candidate: str
    function: str


def split(text: str, where: str) -> Parts:
    """Split the text of a file. Raises TaskError where SPEC is not a plain call with names."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise TaskError(f"{where}:{error.lineno}: syntax error: {error.msg}") from None
    except ValueError as error:
        raise TaskError(f"{where}: syntax error: {error}") from None
    spec = next((node for node in tree.body if isinstance(node, ast.Assign) and _targets(node) == {"SPEC"}), None)
    if spec is None or not isinstance(spec.value, ast.Call):
        raise TaskError(f"{where}: has no line SPEC = Spec(...) at the top level, so the judge cannot split it")
    arguments = {one.arg: one.value for one in spec.value.keywords}
    operator, reference = arguments.get("op"), arguments.get("reference")
    if not isinstance(operator, ast.Name) or reference is None:
        raise TaskError(
            f"{where}: op of SPEC is not the name of a function, so the judge cannot split the file; define a function "
            "at the top level that calls it, and give its name as op"
        )
    of_task = {name for key, value in arguments.items() if key not in _OF_THE_CANDIDATE for name in _names(value)}
    of_task |= set(_names(spec.value.func))
    spec.value.keywords = [
        ast.keyword("op", reference) if one.arg == "op" else one for one in spec.value.keywords if one.arg != "rivals"
    ]
    task = [node for node in _reached(tree, of_task) if not _is_call(node)]
    acting = [node for node in tree.body if node is not spec and _acts_when_imported(node)]
    of_candidate = {operator.id, *(name for node in acting for name in (*_names(node), *_defined(node)))}
    candidate = [node for node in _reached(tree, of_candidate) if node is not spec]
    return Parts(_text([*task, spec], text, spec), _text(candidate, text), operator.id)


def _reached(tree: ast.Module, names: set[str]) -> list[ast.stmt]:
    """Return imports, other statements, and the definitions that these names need, in order."""
    defined: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _defined(node):
            defined.setdefault(name, []).append(node)
    needed, waiting = set(), [name for name in names if name in defined]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += [one for node in defined[name] for one in _names(node) if one in defined]
    return [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom) or (_defined(node) & needed) or _is_call(node)
    ]


def _is_call(node: ast.stmt) -> bool:
    """Whether a statement only acts, such as a call; the candidate keeps those."""
    return not isinstance(node, ast.Import | ast.ImportFrom) and not _defined(node)


def _acts_when_imported(node: ast.stmt) -> bool:
    """Whether a statement may register something that nobody names, such as an operator or its gradient."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return any(set(_names(one)) - {"triton"} for one in node.decorator_list)
    is_main = isinstance(node, ast.If) and "__name__" in _names(node.test)
    return _is_call(node) and not is_main


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return _targets(node) - {"SPEC"}


def _targets(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _names(node: ast.AST) -> Iterable[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _text(statements: list[ast.stmt], text: str, rewritten: ast.stmt | None = None) -> str:
    """Return statements of a text on their lines; the one that was rewritten as its first line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")
    made = ""
    for node in sorted(statements, key=lambda one: (one.lineno, one.col_offset)):
        first, column = min(((one.lineno, 0) for one in getattr(node, "decorator_list", ())), default=_start(node))
        missing = first - 1 - made.count("\n")
        made += "\n" * missing if missing else "; " if made and not made.endswith("\n") else ""
        if node is rewritten:
            made += ast.unparse(node)
            continue
        kept = lines[first - 1 : node.end_lineno]
        kept[-1] = kept[-1][: node.end_col_offset]
        kept[0] = kept[0][column:]
        made += b"\n".join(kept).decode()
    return made + "\n"


def _start(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset
