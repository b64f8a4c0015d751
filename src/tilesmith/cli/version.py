"""`tilesmith --version`."""

from __future__ import annotations

from typing import Annotated

import typer

from tilesmith import __version__


def _show(wanted: bool) -> None:
    if wanted:
        print(f"tilesmith {__version__}")
        raise typer.Exit


def print_version(
    version: Annotated[
        bool, typer.Option("--version", callback=_show, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Handle the options before the command."""
