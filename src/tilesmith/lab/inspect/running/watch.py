"""Let a session see every launch of this process, and gather what the session found."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
import triton

from tilesmith.hardware.devices import Device, device, devices
from tilesmith.lab.inspect.model import Inspection
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.running.cuda_kernels import cuda_kernels_on_host
from tilesmith.lab.inspect.running.gpu_stand_in import gpu_stand_in
from tilesmith.lab.inspect.running.inductor import inductor_watched
from tilesmith.lab.inspect.session import Session
from tilesmith.toolchain.interpreter import handing_over

DEFAULT_DEVICE = "h200"


def watching(session: Session) -> ExitStack:
    """Return a context in which the session replaces every launch."""
    stack = ExitStack()
    if not session.has_gpu:
        stack.enter_context(gpu_stand_in(pretended_device(session.options), session.note))
    stack.enter_context(handing_over(session))
    stack.enter_context(session.tensors.watching())
    stack.enter_context(inductor_watched(session.tensors, not session.has_gpu, session.note))
    if not session.has_gpu:
        stack.enter_context(cuda_kernels_on_host(session.tensors))
    return stack


def pretended_device(options: InspectOptions) -> Device:
    """Return the GPU that a program sees on a machine without one."""
    if options.device:
        return device(options.device)
    first = str(options.first_target)
    return next((one for one in devices() if one.architecture.target == first), device(DEFAULT_DEVICE))


def inspection_of(session: Session, script: str, arguments: Sequence[str] = ()) -> Inspection:
    """Return what a session has found so far."""
    from tilesmith import __version__

    kernels = tuple(replace(kernel, launches=session.launches[number]) for number, kernel in enumerate(session.kernels))
    return Inspection(
        tilesmith=__version__,
        torch=torch.__version__,
        triton=triton.__version__,
        script=script,
        arguments=tuple(arguments),
        device=torch.cuda.get_device_name() if session.has_gpu else pretended_device(session.options).title,
        has_gpu=session.has_gpu,
        sector_bytes=session.sector_bytes,
        kernels=kernels,
        notes=tuple(session.notes),
    )
