"""`tilesmith doctor`: show what this machine can do, and what to install for more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilesmith import __version__
from tilesmith.cli.terminal import console, write_json

if TYPE_CHECKING:
    from tilesmith.toolchain.machine import Machine


def doctor(
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results as JSON.")] = None,
) -> None:
    """Show GPU, driver, torch, Triton, compile targets and profilers, and what to install for more."""
    from rich.table import Table
    from rich.text import Text

    from tilesmith.toolchain.machine import examine

    with console.status("examining this machine"):
        machine = examine()
    if json:
        write_json(json, findings(machine))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in described(machine).items():
        table.add_row(name, Text(value))
    console.print(table)
    if machine.advice:
        advice = Table(box=None, pad_edge=False, show_header=False)
        for sentence in machine.advice:
            advice.add_row("•", Text(sentence))
        console.print()
        console.print(advice)


def findings(machine: Machine) -> dict[str, Any]:
    """Return the machine as JSON data."""
    from dataclasses import asdict

    return {"tilesmith": __version__, **asdict(machine)}


def described(machine: Machine) -> dict[str, str]:
    """Return the machine in words, most important first."""
    return {
        "GPU": _described_gpu(machine),
        "Triton launches here": "yes" if machine.triton_launches else "no",
        "Kernels compile for": ", ".join(machine.targets) or "nothing",
        "Profilers": ", ".join(machine.profilers) or "none",
        "Triton": machine.triton or "missing",
        "PyTorch": machine.torch or "missing",
        "Python": machine.python,
        "Tilesmith": __version__,
    }


def _described_gpu(machine: Machine) -> str:
    gpu = machine.gpu
    if gpu is None:
        return "none"
    several = f"{gpu.count} × " if gpu.count > 1 else ""
    kind = f"compute capability {gpu.compute_capability}" if gpu.vendor == "nvidia" else gpu.compute_capability
    driver = f", driver {gpu.driver}" if gpu.driver else ""
    return f"{several}{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, {kind}{driver}"
