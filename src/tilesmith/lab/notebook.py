"""The magics `%%check` and `%%inspect` for Jupyter: `%load_ext tilesmith.lab.notebook`.

Both run the cell first, so what the cell defines stays defined.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any, NoReturn

from tilesmith.lab.check.check_call import Checked
from tilesmith.lab.check.check_call import check as check_spec
from tilesmith.lab.inspect.inspect_call import NotebookInspection
from tilesmith.lab.inspect.inspect_call import inspect as inspect_program
from tilesmith.lab.inspect.options import InspectError
from tilesmith.spec import Spec, SpecError
from tilesmith.toolchain.compiler import Target

DEFAULT_TARGETS = ("cuda:90", "hip:gfx942")


class MagicError(Exception):
    """A magic was used wrongly. The message is one line for the user."""


class CellError(Exception):
    """The cell failed. IPython has shown its error already, so the magic shows none."""

    def _render_traceback_(self) -> list[str]:
        return []


class _Parser(argparse.ArgumentParser):
    def parse_line(self, line: str) -> argparse.Namespace:
        """Return the options of a magic's line."""
        try:
            return self.parse_args(shlex.split(line))
        except ValueError as error:  # a quotation mark without its other
            self.error(str(error))

    def error(self, message: str) -> NoReturn:
        raise MagicError(f"%%{self.prog}: {message}")


def load_ipython_extension(shell: Any) -> None:
    """Register the magics. `%load_ext` calls this function."""
    shell.register_magic_function(_shown(shell, check_cell), "cell", "check")
    shell.register_magic_function(_shown(shell, inspect_cell), "cell", "inspect")


def check_cell(shell: Any, line: str, cell: str) -> Checked:
    """Run a cell that defines a SPEC, and compare its operator with its reference."""
    parser = _Parser(prog="check", add_help=False)
    for name in ("case", "dtype", "layout"):
        parser.add_argument(f"--{name}", action="append")
    chosen = parser.parse_line(line)
    _run(shell, cell)
    spec = shell.user_ns.get("SPEC")
    if not isinstance(spec, Spec):
        raise MagicError("%%check: the cell defines no SPEC; SPEC = Spec(name=…, op=…, reference=…, …)")
    return check_spec(spec, cases=chosen.case, dtypes=chosen.dtype, layouts=chosen.layout)


def inspect_cell(shell: Any, line: str, cell: str) -> NotebookInspection:
    """Run a cell and explain every Triton kernel that it launches."""
    parser = _Parser(prog="inspect", add_help=False)
    parser.add_argument("--target", action="append")
    parser.add_argument("--programs", type=int)
    parser.add_argument("--config")
    parser.add_argument("--device")
    chosen = parser.parse_line(line)
    try:
        for target in chosen.target or ():
            Target.parse(target)
    except ValueError as error:
        parser.error(str(error))

    def the_cell() -> None:
        _run(shell, cell)

    return inspect_program(
        the_cell,
        targets=chosen.target or DEFAULT_TARGETS,
        programs=chosen.programs,
        config=chosen.config,
        device=chosen.device,
    )


def _run(shell: Any, cell: str) -> None:
    """Run a cell without showing the value of its last line: the magic's own result is shown. Raises CellError."""
    ran = shell.run_cell(cell, store_history=False, silent=True)
    error = ran.error_before_exec or ran.error_in_exec
    if error is not None:
        raise CellError(f"{type(error).__name__}: {error}") from error


def _shown(shell: Any, magic: Callable[[Any, str, str], Any]) -> Callable[[str, str], Any]:
    """Return a magic that prints one line for a wrong use, and returns its result for display otherwise."""

    def shown(line: str, cell: str) -> Any:
        try:
            return magic(shell, line, cell)
        except (MagicError, SpecError, InspectError) as error:
            print(error)
            return None

    return shown
