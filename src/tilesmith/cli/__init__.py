"""The command line: one thin module per command.

Files, in reading order:

- `terminal.py`: the console, one-line errors and result files of all commands.
- `options.py`: options that several commands share.
- `version.py`: `tilesmith --version`.
- `doctor.py`: `tilesmith doctor`.
- `tour.py`: `tilesmith tour`.
- `tour_chapters/`: the chapters of the tour.
- `ops.py`: `tilesmith ops`.
- `check.py`: `tilesmith check`.
- `check_child.py`: the part of `check` that runs in a child process.
- `judge.py`: `tilesmith judge`.
- `mcp.py`: `tilesmith mcp`.
- `inspect.py`: `tilesmith inspect`.
- `bench.py`: `tilesmith bench`.
- `survey.py`: `tilesmith bench --draw`, cases drawn at random.
- `operator_source.py`: our operators as subjects of the benchmark.
- `tune.py`: `tilesmith tune`.
- `profile.py`: `tilesmith profile`.
- `train.py`: `tilesmith train`.
- `compare.py`: `tilesmith compare`.
- `prove.py`: `tilesmith prove`.
- `debug.py`: `tilesmith debug`.
- `learn.py`: `tilesmith learn`.
- `learn_text.py`: the texts of `tilesmith learn`.
- `studio.py`: `tilesmith studio`.
- `winners.py`: from stored results to the shipped dispatch tables.
- `auto_models.py`: from stored surveys to the shipped models of `auto`.
- `examples/`: kernels that the tour inspects and checks.
"""

from __future__ import annotations

import atexit
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from tilesmith.cli.bench import bench
from tilesmith.cli.check import check
from tilesmith.cli.compare import compare
from tilesmith.cli.debug import debug
from tilesmith.cli.doctor import doctor
from tilesmith.cli.inspect import inspect
from tilesmith.cli.judge import judge
from tilesmith.cli.learn import learn
from tilesmith.cli.mcp import mcp
from tilesmith.cli.ops import ops
from tilesmith.cli.profile import profile
from tilesmith.cli.prove import prove
from tilesmith.cli.studio import studio
from tilesmith.cli.terminal import (
    flushed_standard_output,
    refuse_unwritable_results,
    require_current_folder,
    reserve_standard_output,
    silence_standard_error,
    tolerate_encodings,
)
from tilesmith.cli.tour import tour
from tilesmith.cli.train import train
from tilesmith.cli.tune import tune
from tilesmith.cli.version import print_version


class Commands(TyperGroup):
    """All commands."""

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        reserve_standard_output(words)
        refuse_unwritable_results(words)
        return super().parse_args(context, words)


app = typer.Typer(
    name="tilesmith",
    cls=Commands,
    help="Write a Triton kernel; know that it is right, see why it is fast or slow, and ship it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback()(print_version)
for command in (doctor, tour, ops, check, judge, inspect, bench, tune, profile, prove, mcp, studio):
    app.command()(command)
for commands in (train, compare, debug, learn):
    app.add_typer(commands)


def main() -> None:
    atexit.register(silence_standard_error)  # registered first, called last
    tolerate_encodings()
    require_current_folder()
    try:
        with flushed_standard_output():
            app()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("torch", "triton"):
            raise
        wanted = f"this command needs {missing}, which is not installed"
        print(f"tilesmith: {wanted}; `tilesmith doctor` says how to get it", file=sys.stderr)
        sys.exit(2)
