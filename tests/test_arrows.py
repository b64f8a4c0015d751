"""Imports point down only, and Triton's internals stay in one room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilesmith

SOURCE = Path(tilesmith.__file__).parent

# From the bottom. A room may import every floor below. Rooms of one floor do not import each other, except those of the
# foundation.
FLOORS = (
    {"hardware"},
    {"arguments", "spec", "storage", "messages", "nursery_process", "toolchain"},
    {"ops", "lab"},
    {"nn", "optim", "fold"},
    {"models", "patch"},
    {"training", "workshop"},
    {"studio"},
    {"cli", "__main__"},
)
FOUNDATION = FLOORS[1]

# Names that `tilesmith/__init__.py` re-exports, and their rooms.
RE_EXPORTED = dict.fromkeys(("Case", "Cost", "Layout", "Spec", "Work"), "spec") | {"debug": "ops", "use": "ops"}
OF_THE_PACKAGE = {"__version__"}

INTERNALS = ("triton.runtime", "triton.compiler", "triton.backends", "triton._C", "triton.knobs")
INTERNALS_ONLY_IN = "toolchain"


def imported_names(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Yield line and full name of every import in a module, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and last_name(node.func).endswith("import_module"):
            yield from ((node.lineno, str(name.value)) for name in node.args if isinstance(name, ast.Constant))


def uses_of_internals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield uses of internals as attributes of `triton`, without an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "triton":
            name = f"triton.{node.attr}"
            if is_internal(name):
                yield node.lineno, name


def last_name(node: ast.AST) -> str:
    """Return `c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_internal(name: str) -> bool:
    return any(name == internal or name.startswith(f"{internal}.") for internal in INTERNALS)


def room_of(name: str) -> str | None:
    """Return the room of a dotted name; None where it is not ours or belongs to the package itself."""
    first, _, rest = name.partition(".")
    if first != "tilesmith" or not rest:
        return None
    room = rest.split(".")[0]
    return RE_EXPORTED.get(room, None if room in OF_THE_PACKAGE else room)


def floor_of(room: str) -> int:
    for number, floor in enumerate(FLOORS):
        if room in floor:
            return number
    raise AssertionError(f"tilesmith.{room} is on no floor: say in {Path(__file__).name} where it belongs")


def may_import(room: str, other: str) -> bool:
    if floor_of(room) == floor_of(other):
        return room == other or room in FOUNDATION or room == "__main__"
    return floor_of(room) > floor_of(other)


def violations(source: str, module: str) -> list[str]:
    """Return the forbidden imports of a module, one line each."""
    tree = ast.parse(source)
    room = module.split(".")[1]
    found = []
    for line, name in imported_names(tree, module.rpartition(".")[0]):
        other = room_of(name)
        if other is not None and not may_import(room, other):
            found.append(f"{module}:{line} imports {name}")
        if room != INTERNALS_ONLY_IN and is_internal(name):
            found.append(f"{module}:{line} imports {name}")
    if room != INTERNALS_ONLY_IN and any(name in source for name in INTERNALS):
        found += [f"{module}:{line} uses {name}" for line, name in uses_of_internals(tree)]
    return found


def modules() -> dict[str, Path]:
    """Return every module below the package. The package itself imports rooms lazily."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts != ("__init__",):
            found[".".join(("tilesmith", *parts))] = path
    return found


def test_imports_point_down() -> None:
    assert [line for module, path in modules().items() for line in violations(path.read_text(), module)] == []


def test_the_package_itself_imports_no_room_until_it_is_asked_for() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [name for node in at_once for _, name in imported_names(node, "tilesmith") if room_of(name)]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tilesmith.ops.silu", "from tilesmith.lab import check"),
        ("tilesmith.ops.silu", "import tilesmith.lab.check"),
        ("tilesmith.ops.silu", "from tilesmith import lab"),
        ("tilesmith.ops.silu", "from ..lab import check"),
        ("tilesmith.ops.rms_norm.forward", "from ... import nn"),
        ("tilesmith.ops.silu", "def f():\n    from tilesmith.nn import SiLU"),
        ("tilesmith.ops.silu", "import importlib\nimportlib.import_module('tilesmith.cli')"),
        ("tilesmith.lab.check", "from tilesmith.ops import SPECS"),
        ("tilesmith.lab.check", "if TYPE_CHECKING:\n    from tilesmith import use"),
        ("tilesmith.toolchain.launcher", "from tilesmith.ops.runtime import plan"),
        ("tilesmith.toolchain.launcher", "def f():\n    from tilesmith.lab import check"),
        ("tilesmith.toolchain.machine", "from tilesmith.lab import check"),
        ("tilesmith.hardware.devices", "from tilesmith.toolchain import versions"),
        ("tilesmith.spec", "from tilesmith import nn"),
        ("tilesmith.nn", "from tilesmith.models import llama"),
        ("tilesmith.nn", "from tilesmith.optim import AdamW"),
        ("tilesmith.optim.adamw", "from tilesmith import nn"),
        ("tilesmith.models.llama", "import tilesmith.training"),
        ("tilesmith.patch.llama", "import tilesmith.models.llama"),
        ("tilesmith.workshop.engine", "from tilesmith.training import loop"),
        ("tilesmith.training.loop", "from tilesmith.cli import main"),
        ("tilesmith.ops.silu", "from triton import knobs"),
        ("tilesmith.ops.silu", "import triton\ntriton.knobs.runtime.debug = True"),
        ("tilesmith.ops.silu", "from triton.runtime.jit import JITFunction"),
        ("tilesmith.lab.check", "import triton.compiler as compiler"),
        ("tilesmith.cli.doctor", "def f():\n    import triton.backends.nvidia"),
        ("tilesmith.cli.doctor", "from triton._C import libtriton"),
    ],
)
def test_a_planted_violation_is_found(module: str, source: str) -> None:
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tilesmith.ops.silu", "import triton\nimport triton.language as tl\nfrom triton.testing import do_bench"),
        ("tilesmith.ops.silu", "from tilesmith.ops.runtime.plan import Plan\nfrom tilesmith.spec import Spec"),
        ("tilesmith.ops.rms_norm.forward", "from . import backward\nfrom ..runtime import plan"),
        ("tilesmith.lab.check", "from tilesmith import Spec, __version__\nimport tilesmith.toolchain.interpreter"),
        ("tilesmith.toolchain.launcher", "from triton import knobs\nfrom triton.runtime.jit import JITFunction"),
        ("tilesmith.toolchain.machine", "from tilesmith.hardware import devices\nfrom tilesmith import storage"),
        ("tilesmith.nn", "from tilesmith.ops import silu"),
        ("tilesmith.optim.address_tables", "from tilesmith.ops.runtime.plan import Plan"),
        ("tilesmith.training.run", "from tilesmith.optim import AdamW"),
        ("tilesmith.cli.check", "from tilesmith.lab import check\nfrom tilesmith.ops import SPECS\nimport torch"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_a_room_that_is_on_no_floor_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"tilesmith\.attic is on no floor"):
        violations("from tilesmith.attic import dust", "tilesmith.ops.silu")
