"""`tilesmith studio`: the workshop and the lab in a browser."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.cli.learn import HERE, Folder, Sets, opened
from tilesmith.cli.terminal import console, refuse


def studio(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE…]", help="Kernel files, or one folder, for free mode.")
    ] = None,
    folder: Folder = HERE,
    exercises: Sets = None,
    handed_in: Annotated[
        Path | None,
        typer.Option("--class", metavar="DIR", help="Show the progress of a class from the reports in this folder."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Default: any free port.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in your browser.")] = True,
) -> None:
    """Open the workshop in a browser: lesson, editor, picture and checks side by side. The server is local.

    Needs Starlette and uvicorn: pip install '.[studio]' in a clone.
    """
    try:
        from tilesmith.studio.app import Studio
        from tilesmith.studio.server import Server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        refuse(f"the studio needs {error.name}, which is not installed: pip install '.[studio]' in a clone")
    for file in files or []:
        if not file.exists():
            refuse(f"{file} does not exist")
    if handed_in is not None and not handed_in.is_dir():
        refuse(f"{handed_in} is not a folder")
    with opened(folder, exercises) as workshop:
        pages = Studio(workshop, tuple(files or ()), handed_in)
        try:
            server = Server(pages, port)
        except OSError as error:
            refuse(f"--port {port}: {error.strerror}")

        def ready(address: str) -> None:
            console.print(f"The studio is at {address}\nCtrl-C ends it.", markup=False, soft_wrap=True)

        with suppress(KeyboardInterrupt):
            server.run(ready, browser=browser and console.is_terminal)
