"""`tilesmith inspect`: explain the kernels that a script launches, with or without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.cli.terminal import CHECK_FAILED, WRONG_USAGE, console, refuse, write_json, write_result

if TYPE_CHECKING:
    from tilesmith.lab.inspect.model import Ending, Inspection
    from tilesmith.lab.inspect.options import InspectOptions

TEXTS = ("ttir", "ttgir", "llir", "ptx", "sass", "amdgcn")


def inspect(
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT.py",
            help="A script that launches Triton kernels, a file with a SPEC, a module, or a command after --.",
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS…]", help="Arguments of the script.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Compile for: cuda:80, cuda:90, cuda:100, hip:gfx90a, hip:gfx942; may be repeated."),
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="Inspect only this kernel; may be repeated.")] = None,
    programs: Annotated[
        str,
        typer.Option(
            metavar="N|all", help="How many programs of a grid to trace. Default: as many as a few seconds allow."
        ),
    ] = "",
    config: Annotated[
        str | None,
        typer.Option(metavar="N|FIELD=VALUE,…|all", help="The configuration of an autotuner to use; all: a table."),
    ] = None,
    case: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The case of the file's SPEC to call. Default: the largest that needs no GPU."
        ),
    ] = None,
    precision: Annotated[
        bool, typer.Option("--precision", help="Show the error of each line beside float64; takes longer.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="Predict for a device: h200, h100, b200, a100, mi300x, …")] = None,
    asm: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Print the compiler's text by source line: {', '.join(TEXTS)}.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Stop the script after this many seconds.")] = 300.0,
    memory: Annotated[float, typer.Option(min=1, help="Stop the script at this much memory, in GB.")] = 8.0,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained page.")] = None,
) -> None:
    """Explain what each kernel of a script does and what to change. The script runs unmodified; a GPU is optional.

    Every launch is traced in the interpreter and compiled for NVIDIA and AMD GPUs. Exit status 1 if a finding is an
    error, or if the script fails.
    """
    options = replace(
        _options(target or [], programs, config, device, asm, kernel or []), precision=precision, case=case
    )
    found = _run(*_program([script, *(arguments or [])]), options, timeout, memory)
    if json:
        from tilesmith.lab.inspect.output.json_output import as_json

        write_json(json, as_json(found))
    if html:
        from tilesmith.lab.inspect.output.page import write_html

        write_result(html, write_html(found))
    _show(found, asm)
    _end(found, kernel or [], config)


def _options(
    targets: list[str], programs: str, config: str | None, device: str | None, asm: str | None, kernels: list[str]
) -> InspectOptions:
    from tilesmith.lab.inspect.options import InspectOptions, default_targets
    from tilesmith.toolchain.compiler import Target

    if programs not in ("", "all") and not (programs.isdecimal() and int(programs)):
        refuse(f"--programs {programs!r}: expected a number or all")
    if config is not None and not re.fullmatch(r"all|\d+|\w+=[^,=]+(,\w+=[^,=]+)*", config):
        refuse(f"--config {config!r}: expected a number, FIELD=VALUE,… or all")
    if asm is not None and asm not in TEXTS:
        refuse(f"--asm {asm!r} is not one of {', '.join(TEXTS)}")
    try:
        chosen = default_targets(device)
        chosen = tuple(map(Target.parse, targets)) or chosen
    except ValueError as error:
        refuse(f"--{error}")
    return InspectOptions(
        targets=chosen,
        asked=bool(targets),
        programs=int(programs) if programs.isdecimal() else None,
        seconds=float("inf") if programs == "all" else InspectOptions.seconds,
        config=config,
        kernels=tuple(kernels),
        device=device,
        texts=asm is not None,
    )


def _program(command: list[str]) -> tuple[str, list[str]]:
    from tilesmith.lab.inspect.options import InspectError
    from tilesmith.lab.inspect.running.command import program_of

    try:
        return program_of(command)
    except InspectError as error:
        refuse(str(error))


def _run(script: str, arguments: list[str], options: InspectOptions, timeout: float, memory: float) -> Inspection:
    from tilesmith.lab.inspect.running.script import Limits, inspect_script
    from tilesmith.toolchain.availability import require_triton

    require_triton()
    limits = Limits(timeout, memory)
    if not console.is_terminal:
        return inspect_script(script, arguments, options, limits)
    name = Path(script).name
    with console.status(f"starting {name}") as status:
        return inspect_script(
            script, arguments, options, limits, progress=lambda text: status.update(f"{name}: {text}")
        )


def _show(found: Inspection, asm: str | None) -> None:
    from tilesmith.lab.inspect.output.terminal import show

    if found.ending.traceback:
        console.print(found.ending.traceback, markup=False, soft_wrap=True)
    show(console, found)
    if asm is not None:
        _show_texts(found, asm)


def _show_texts(found: Inspection, asm: str) -> None:
    for kernel in found.kernels:
        lines = kernel.source.splitlines()
        for facts in kernel.targets.values():
            if asm not in facts.assembly:
                continue
            console.print(f"\n{kernel.name}, {asm} for {facts.target}", style="bold", markup=False)
            last = None
            for line, text in facts.assembly[asm]:
                if line and line != last:
                    code = lines[line - kernel.line].strip() if 0 <= line - kernel.line < len(lines) else ""
                    console.print(f"{line}: {code}", style="bold", markup=False, soft_wrap=True)
                    last = line
                console.print(text, markup=False, soft_wrap=True)


def _end(found: Inspection, kernels: list[str], config: str | None) -> None:
    """Print one line about the failure, if any, and exit with its status."""
    problem, status = _problem(found, kernels)
    if not problem and config is not None and not any(one.is_tuned for one in found.kernels):
        problem, status = f"--config {config}: no kernel of the script has an autotuner", WRONG_USAGE
    if problem:
        typer.echo(f"tilesmith: {problem}", err=True)
        raise typer.Exit(status)
    errors = sum(finding.severity == "error" for finding in found.findings)
    if errors:
        console.print(f"[bold red]{errors} error{'' if errors == 1 else 's'}[/]")
        raise typer.Exit(CHECK_FAILED)


def _problem(found: Inspection, kernels: list[str]) -> tuple[str, int]:
    ending = found.ending
    seen = len(found.kernels)
    traced_before = f"{seen} kernel{'' if seen == 1 else 's'} traced before that"
    match ending.kind:
        case "exception":
            return _failure(found.script, ending, traced_before)
        case "timeout":
            return (
                f"{found.script} {ending.message} and was stopped; {traced_before}. --timeout sets the limit",
                CHECK_FAILED,
            )
        case "memory":
            return (
                f"{found.script} {ending.message} and was stopped; {traced_before}. --memory sets the limit",
                CHECK_FAILED,
            )
        case "signal":
            return f"{found.script} {ending.message}; {traced_before}", CHECK_FAILED
    if ending.status:
        said = f": {ending.message}" if ending.message else ""
        return f"{found.script} ended with status {ending.status}{said}; {traced_before}", CHECK_FAILED
    if not seen and kernels:
        return f"--kernel: {found.script} launched no Triton kernel named {' or '.join(kernels)}", WRONG_USAGE
    if not seen:
        why = "; ".join(found.notes) or _how_to_run_tests(found.script) or "nothing to inspect"
        return f"{found.script} launched no Triton kernel: {why}", WRONG_USAGE
    return "", 0


def _how_to_run_tests(script: str) -> str:
    """Return how to inspect a file of tests; empty for other scripts."""
    path = Path(script)
    is_tests = path.suffix == ".py" and re.search(r"^\s*def test_", path.read_text(errors="replace"), re.MULTILINE)
    return f"pytest runs its tests, as in tilesmith inspect -- pytest {script}" if is_tests else ""


def _failure(script: str, ending: Ending, traced_before: str) -> tuple[str, int]:
    kind, _, message = ending.message.partition(": ")
    if kind == "InspectError":
        return message, WRONG_USAGE
    if kind in ("SyntaxError", "IndentationError", "TabError"):
        return f"{script} is not Python: {ending.message}", WRONG_USAGE
    if kind == "ModuleNotFoundError" or (kind == "ImportError" and message.startswith("No module named")):
        return f"{script} cannot run: {message}. Install it for {_python()}", WRONG_USAGE
    return f"{script} failed: {ending.message}; {traced_before}", CHECK_FAILED


def _python() -> str:
    import sys

    return sys.executable
