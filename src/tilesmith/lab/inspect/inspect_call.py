"""Inspect a Python function call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilesmith.lab.inspect.model import Inspection
from tilesmith.lab.inspect.options import InspectOptions, default_targets
from tilesmith.lab.inspect.running.watch import inspection_of, watching
from tilesmith.lab.inspect.session import Session
from tilesmith.toolchain.compiler import Target


class NotebookInspection(Inspection):
    """An inspection that a notebook shows as its HTML page."""

    def _repr_html_(self) -> str:
        from tilesmith.lab.inspect.output.page import notebook_html  # needed in notebooks only

        return notebook_html(self)


def inspect(
    program: Callable[[], Any],
    *,
    targets: Sequence[str] = (),
    programs: int | None = None,
    seconds: float = 3.0,
    config: str | None = None,
    device: str | None = None,
    texts: bool = False,
) -> NotebookInspection:
    """Call a function and explain every Triton kernel that it launches.

    Tensors may live on a GPU, on the CPU, or be requested on a GPU that this machine does not have. `programs` is the
    number of programs to trace per launch; by default the first, the last and some between, then more for `seconds`.
    `targets` default to that of `device`, else `cuda:90`, and one of the other vendor, which only informs.
    The function's return value is lost. An exception of the function is raised again.
    """
    named = tuple(map(Target.parse, targets))
    options = InspectOptions(
        targets=named or default_targets(device),
        asked=bool(named),
        programs=programs,
        seconds=seconds,
        config=config,
        device=device,
        texts=texts,
    )
    session = Session(options, has_gpu=torch.cuda.is_available())
    with watching(session):
        program()
        with torch._C.DisableTorchFunction():
            session.run_deferred()
    found = inspection_of(session, script=getattr(program, "__name__", "program"))
    return NotebookInspection(**vars(found))
