"""`tilesmith profile`: run a command under a profiler and summarise where the time goes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.cli.terminal import CHECK_FAILED, console, refuse, write_json, write_result

if TYPE_CHECKING:
    from tilesmith.lab.profile.summary import Summary


def profile(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command, such as: python train.py")],
    tool: Annotated[str, typer.Option(help="auto, torch, proton, ncu, rocprofv3 or rocprof-compute.")] = "auto",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the recordings; each run creates a subfolder.")
    ] = Path("tilesmith-profile"),
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary as an HTML page.")] = None,
) -> None:
    """Run a command under an installed profiler; show where the time goes and which file to open for more.

    Exit status 1 if the command fails, 2 if the command or the profiler is missing.
    """
    from tilesmith.lab.profile.profile_call import Profile
    from tilesmith.lab.profile.session import choose, discard_if_empty, fresh_folder, run
    from tilesmith.lab.profile.summary import ProfileError
    from tilesmith.toolchain.machine import examine

    try:
        chosen = choose(tool, command, examine())
        line = chosen.command(command, folder := fresh_folder(out, chosen))
        _say(f"{chosen.name}: {shlex.join(command)}")
        status = run(line)
    except ProfileError as error:
        refuse(str(error))
    try:
        summary = chosen.read(folder)
    except ProfileError as error:
        discard_if_empty(folder)
        _say(str(error))
        _end(status or CHECK_FAILED)
    _show(summary)
    made = Profile(summary, chosen.name, tuple(command), status)
    if json:
        write_json(json, made.to_json())
    if html:
        write_result(html, made.html())
    _end(status)


def _end(status: int) -> None:
    """Report how the command failed, if it did, and exit with a status."""
    from tilesmith.lab.profile.runner import INTERRUPTED

    if status == INTERRUPTED:
        _say("interrupted: the recording ends there")
        raise typer.Exit(INTERRUPTED)
    if status:
        _say(f"the command failed with status {status}; its output is above")
        raise typer.Exit(CHECK_FAILED)


def _show(summary: Summary) -> None:
    from tilesmith.lab.profile.summary import blocks
    from tilesmith.lab.report.terminal import show_block

    console.print()
    for block in blocks(summary):
        show_block(console, block)
    for path, how in summary.files:
        _say(f"{path}\n  {how}")


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)
