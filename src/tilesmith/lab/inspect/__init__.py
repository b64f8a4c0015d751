"""See what a kernel does, without a GPU: where it reads and writes, how that coalesces, what its binary uses.

found = inspect(lambda: my_operator(x, y))
found.kernel("my_kernel").accesses[0].efficiency
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
import triton

from tilesmith.hardware.devices import Device, device, devices
from tilesmith.lab.inspect.assertions import assert_coalesced, assert_in_bounds, assert_loads_per_element
from tilesmith.lab.inspect.model import Finding, Inspection, Kernel
from tilesmith.lab.inspect.running.gpu_stand_in import gpu_stand_in
from tilesmith.lab.inspect.session import InspectError, Session, Wishes
from tilesmith.toolchain.compiler import Target
from tilesmith.toolchain.interpreter import handing_over

__all__ = [
    "Finding",
    "InspectError",
    "Inspection",
    "Kernel",
    "assert_coalesced",
    "assert_in_bounds",
    "assert_loads_per_element",
    "inspect",
]

DEFAULT_DEVICE = "h200"


def inspect(
    program: Callable[[], Any],
    *,
    targets: Sequence[str] = ("cuda:90", "hip:gfx942"),
    programs: int | None = None,
    seconds: float = 3.0,
    config: str | None = None,
    device: str | None = None,
    texts: bool = False,
) -> Inspection:
    """Calls a function and explains every Triton kernel that it launches.

    Tensors may be on a GPU, on the CPU, or asked for on a GPU that is not here. `programs` is how many of a grid to
    trace; by default as many as `seconds` allow, the first, the last and some between at least. What the function
    returns is lost: let it keep what you need. An exception of its own is raised again.
    """
    wishes = Wishes(tuple(map(Target.parse, targets)), programs, seconds, config, device=device, texts=texts)
    session = Session(wishes, has_gpu=torch.cuda.is_available())
    with watching(session):
        program()
        with torch._C.DisableTorchFunction():
            session.settle()
    return inspection_of(session, script=getattr(program, "__name__", "program"))


def watching(session: Session) -> ExitStack:
    """A context in which the session sees all that is launched."""
    stack = ExitStack()
    if not session.has_gpu:
        stack.enter_context(gpu_stand_in(spoken_of(session.wishes)))
    stack.enter_context(handing_over(session))
    stack.enter_context(session.tensors.watching())
    return stack


def spoken_of(wishes: Wishes) -> Device:
    """The device that a program without a GPU is told it has."""
    if wishes.device:
        return device(wishes.device)
    first = str(wishes.targets[0])
    return next((one for one in devices() if one.architecture.target == first), device(DEFAULT_DEVICE))


def inspection_of(session: Session, script: str, arguments: Sequence[str] = ()) -> Inspection:
    """What a session has found so far."""
    from tilesmith import __version__

    kernels = tuple(replace(kernel, launches=session.launches[number]) for number, kernel in enumerate(session.kernels))
    return Inspection(
        tilesmith=__version__,
        torch=torch.__version__,
        triton=triton.__version__,
        script=script,
        arguments=tuple(arguments),
        device=torch.cuda.get_device_name() if session.has_gpu else spoken_of(session.wishes).title,
        has_gpu=session.has_gpu,
        sector_bytes=session.sector_bytes,
        kernels=kernels,
        notes=tuple(session.notes),
    )
