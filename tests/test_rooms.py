"""Folders stay small, and say in their docstring what is inside; modules stay short; no module imports in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tilesmith

SOURCE = Path(tilesmith.__file__).parent
EXERCISES = SOURCE / "workshop" / "exercises"
MOST_FILES = 16
MOST_LINES = 400
MOST_PARAMETERS = 10
MOST_REPEATED_LINES = 9
CONTENTS = "Files, in reading order:"

# Functions that take the arguments of a public operator, one by one.
LIKE_THE_OPERATOR = {
    "reference", "native", "prepare", "takes", "sizes", "check_values",
    "flex", "flash_attn", "flash_attn_4", "rival",  # rivals of attention
    "empty_gradients",  # the schema of a backward
}  # fmt: skip


def python_files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if not path.is_relative_to(EXERCISES)]


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def packages() -> list[Path]:
    """Return the folders with an `__init__.py`; the package itself lists its rooms in ARCHITECTURE.md."""
    return [path.parent for path in python_files() if path.name == "__init__.py" and path.parent != SOURCE]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def contents(folder: Path) -> set[str]:
    """Return the modules and subpackages of a package, as its docstring names them."""
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    return modules | {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}


def listed(docstring: str) -> list[str]:
    """Return the names in the list of files that ends a docstring."""
    _, _, after = docstring.partition(CONTENTS)
    return re.findall(r"^- `([^`]+)`: \S", after, re.MULTILINE)


@pytest.mark.parametrize("folder", [pytest.param(folder, id=name_of(folder)) for folder in packages()])
def test_package_docstring_lists_its_files(folder: Path) -> None:
    names = listed(ast.get_docstring(parsed(folder / "__init__.py")) or "")
    assert sorted(names) == sorted(contents(folder))


def test_no_folder_has_too_many_files() -> None:
    counts: dict[str, int] = {}
    for path in python_files():
        counts[name_of(path.parent)] = counts.get(name_of(path.parent), 0) + 1
    del counts["cli"]  # one module for each command
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_no_module_is_too_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules of ours that a module imports, also in functions and for type checkers."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in python_files():
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_no_module_imports_in_a_circle() -> None:
    graph = {name: {one for one in imports_of(path) if one in modules()} for name, path in modules().items()}
    del graph["tilesmith"]  # re-exports rooms, some of which read its version
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def long_signatures(path: Path) -> list[str]:
    """Return the functions of a file that take too many parameters and may not."""
    return [
        f"{node.name} takes {count}"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and not may_be_long(node, path)
        for count in [len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)]
        if count > MOST_PARAMETERS
    ]


def may_be_long(function: ast.FunctionDef, path: Path) -> bool:
    """Whether something else fixes the signature: a launch, a schema, a public operator, module or command."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    of_schema = any(re.match(r"(kernels|operator)\(|\w+\.(plan|composed)$", one) for one in decorators)
    public = (
        path.is_relative_to(SOURCE / "fold")
        or path.is_relative_to(SOURCE / "cli")
        or (path.is_relative_to(SOURCE / "nn") and function.name == "__init__")
    )
    return function.name.endswith("_kernel") or of_schema or public or function.name in LIKE_THE_OPERATOR


def test_no_function_takes_too_many_parameters() -> None:
    found = {name_of(path): long_signatures(path) for path in python_files()}
    assert {name: one for name, one in found.items() if one} == {}


def outermost_functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Yield functions and methods, but none inside another."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from outermost_functions(node)


def repeated_lines(sources: Mapping[str, str], length: int) -> Iterator[str]:
    """Yield the places of each piece of `length` lines that two function bodies share. Signatures and comments do not
    count: kernels of one operator have the same parameters."""
    seen: dict[tuple[str, ...], str] = {}
    for name, source in sources.items():
        lines = source.splitlines()
        for function in outermost_functions(ast.parse(source)):
            body = [re.sub(r"\s+#.*", "", lines[number]).strip() for number in range(
                function.body[0].lineno - 1, function.end_lineno or 0)]  # fmt: skip
            body = [line for line in body if line and not line.startswith("#")]
            for start in range(len(body) - length + 1):
                piece, place = tuple(body[start : start + length]), f"{name}:{function.name}"
                if seen.setdefault(piece, place) != place:
                    yield f"{seen[piece]} and {place}"


def test_no_ten_lines_of_operators_are_written_twice() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in (SOURCE / "ops").rglob("*.py")}
    assert set(repeated_lines(sources, MOST_REPEATED_LINES + 1)) == set()


def test_repetition_is_found_whatever_the_comments() -> None:
    one, two = "def f():\n    a = 1\n    b = 2  # two\n", "def g(x):\n    # one\n    a = 1\n    b = 2\n"
    assert list(repeated_lines({"one.py": one, "two.py": two}, 2)) == ["one.py:f and two.py:g"]
    assert list(repeated_lines({"one.py": one, "two.py": two.replace("2", "3")}, 2)) == []


def test_list_of_files_is_read_from_a_docstring() -> None:
    docstring = f"A room.\n\n{CONTENTS}\n\n- `plan.py`: launches as data.\n- `kernels/`: the kernels.\n- `empty.py`:"
    assert listed(docstring) == ["plan.py", "kernels/"]


def test_long_signature_is_found_and_a_kernel_is_not() -> None:
    parameters = ", ".join(f"p{number}" for number in range(MOST_PARAMETERS + 1))
    tree = ast.parse(f"def plan({parameters}): ...\ndef add_kernel({parameters}): ...")
    first, second = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert not may_be_long(first, SOURCE / "ops" / "add.py")
    assert may_be_long(second, SOURCE / "ops" / "add.py")
