"""Inspect a Python function call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tilesmith.arguments import FLAG, TEXT, TEXTS, Rule, number, or_none, require_all, whole
from tilesmith.lab.inspect.model import Inspection
from tilesmith.lab.inspect.options import InspectError, InspectOptions, default_targets
from tilesmith.lab.inspect.running.watch import inspection_of, watching
from tilesmith.lab.inspect.session import Session
from tilesmith.toolchain.compiler import Target


class NotebookInspection(Inspection):
    """An inspection that prints its findings, and that a notebook shows as its HTML page."""

    def to_json(self) -> dict[str, Any]:
        """Return what `tilesmith inspect --json` writes."""
        from tilesmith.lab.bench.result import strict
        from tilesmith.lab.inspect.output.json_output import as_json

        made: dict[str, Any] = strict(as_json(self))
        return made

    def html(self) -> str:
        """Return the page of `tilesmith inspect --html`."""
        from tilesmith.lab.inspect.output.page import write_html

        return write_html(self)

    def report(self) -> str:
        """Return everything that `tilesmith inspect` prints."""
        from tilesmith.lab.inspect.output.terminal import show
        from tilesmith.lab.report.terminal import as_text

        return as_text(lambda console: show(console, self))

    def __str__(self) -> str:
        from tilesmith.lab.inspect.output.terminal import summary

        return summary(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from tilesmith.lab.inspect.output.page import notebook_html  # needed in notebooks only

        return notebook_html(self)


RULES: dict[str, Rule] = {
    "program": (lambda value: callable(value) or isinstance(value, (str, Path)), "a function, or the path of a script"),
    "arguments": TEXTS,
    "targets": TEXTS,
    "programs": or_none(whole(1)),
    "seconds": number(0),
    "config": or_none(TEXT),
    "device": or_none(TEXT),
    "texts": FLAG,
    "precision": FLAG,
}


def inspect(
    program: Callable[[], Any] | str | Path,
    *,
    arguments: Sequence[str] = (),
    targets: Sequence[str] = (),
    programs: int | None = None,
    seconds: float = 3.0,
    config: str | None = None,
    device: str | None = None,
    texts: bool = False,
    precision: bool = False,
) -> NotebookInspection:
    """Call a function, or run a script, and explain every Triton kernel that it launches.

    A script is a path; it runs unmodified in a process of its own, with `arguments`. How it ended is `.ending`.
    Tensors may live on a GPU, on the CPU, or be requested on a GPU that this machine does not have. `programs` is the
    number of programs to trace per launch; by default the first, the last and some between, then more for `seconds`.
    `targets` default to that of `device`, else `cuda:90`, and one of the other vendor, which only informs.
    `precision` also computes sampled programs in float64 and shows the error of each line.
    The function's return value is lost. An exception of the function is raised again.
    """
    require_all(
        "inspect", RULES, program=program, arguments=arguments, targets=targets, programs=programs, seconds=seconds,
        config=config, device=device, texts=texts, precision=precision,
    )  # fmt: skip
    named = tuple(map(Target.parse, targets))
    options = InspectOptions(
        targets=named or default_targets(device),
        asked=bool(named),
        programs=programs,
        seconds=seconds,
        config=config,
        device=device,
        texts=texts,
        precision=precision,
    )
    if isinstance(program, str | Path):
        return _with_used_options(_inspected_script(Path(program), arguments, options), config)
    session = Session(options, has_gpu=torch.cuda.is_available())
    with watching(session):
        program()
        with torch._C.DisableTorchFunction():
            session.run_deferred()
    return _with_used_options(inspection_of(session, script=getattr(program, "__name__", "program")), config)


def _with_used_options(found: Inspection, config: str | None) -> NotebookInspection:
    """Return the results for a notebook. Raises InspectError where `config` chose nothing."""
    if config is not None and found.kernels and not any(one.is_tuned for one in found.kernels):
        raise InspectError(f"config {config!r}: no kernel of the program has an autotuner")
    return NotebookInspection(**vars(found))


def _inspected_script(script: Path, arguments: Sequence[str], options: InspectOptions) -> Inspection:
    from tilesmith.lab.inspect.running.script import inspect_script

    try:
        found = script.is_file()
    except OSError:  # a name too long
        found = False
    if not found:
        raise FileNotFoundError(f"inspect: {str(script)[:200]} is not a file")
    return inspect_script(script, arguments, options)
