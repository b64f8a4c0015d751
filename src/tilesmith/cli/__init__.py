"""The command line: one thin module per command."""

from __future__ import annotations

import typer

from tilesmith.cli.bench import bench
from tilesmith.cli.check import check
from tilesmith.cli.compare import compare
from tilesmith.cli.debug import debug
from tilesmith.cli.doctor import doctor
from tilesmith.cli.inspect import inspect
from tilesmith.cli.learn import learn
from tilesmith.cli.ops import ops
from tilesmith.cli.profile import profile
from tilesmith.cli.tour import tour
from tilesmith.cli.train import train
from tilesmith.cli.tune import tune
from tilesmith.cli.version import print_version

app = typer.Typer(
    name="tilesmith",
    help="Write a Triton kernel; know that it is right, see why it is fast or slow, and ship it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback()(print_version)
for command in (doctor, tour, ops, check, inspect, bench, tune, profile):
    app.command()(command)
for commands in (train, compare, debug, learn):
    app.add_typer(commands)


def main() -> None:
    app()
