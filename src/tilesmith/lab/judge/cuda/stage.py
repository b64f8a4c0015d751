"""A candidate that builds extensions, on a machine with a GPU and nvcc: its processes, and what follows its trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from tilesmith.lab.judge.cuda.builds import Builds
from tilesmith.lab.judge.cuda.replayed import DeviceReplayer
from tilesmith.lab.judge.cuda.sanitizer import sanitized, sanitizer
from tilesmith.lab.judge.cuda.toolkit import toolkit
from tilesmith.lab.judge.isolation import sandbox
from tilesmith.lab.judge.isolation.children import Child, Ended, Nursery
from tilesmith.lab.judge.isolation.limits import Limits
from tilesmith.lab.judge.recorded import Failure, Recorded
from tilesmith.lab.judge.verdict import Reason

MOST_SANITIZED = 3  # trials
WITHOUT_SANITIZER = (
    "without compute-sanitizer: reads out of bounds, and races, are judged by guards around tensors and by outputs"
)


class CudaStage:
    """One judgement's builds, and the trials of which its kernels are watched."""

    def __init__(self, build: Callable[[], AbstractContextManager[Child]], time_folder: Path, scratch: Path) -> None:
        self._toolkit = toolkit(torch.cuda.get_device_capability())
        self._scratch = scratch
        self._built = time_folder
        self.builds = Builds(self._toolkit, build, time_folder)

    def judged(self, replayer: DeviceReplayer, seen: Sequence[Recorded]) -> tuple[list[Reason], list[str]]:
        """Return what compute-sanitizer says about the launches of some trials, and notes."""
        program = sanitizer(self._toolkit)
        if program is None:
            return [], [WITHOUT_SANITIZER]
        chosen = [*(one for one in seen if not one.trial.hidden)][:1] + [one for one in seen if one.trial.hidden]
        trials = [(one, inputs) for one in chosen if (inputs := replayer.input_bytes(one)) is not None]
        reasons, notes = sanitized(program, trials[:MOST_SANITIZED], self._built, self._scratch / "sanitized")
        return reasons, [*notes, "races between blocks in global memory are judged by outputs"]

    def kernels(self, replayer: DeviceReplayer, recorded: Recorded) -> list[dict[str, Any]]:
        """Return registers and memory of the kernels of a trial."""
        name = f"cuda:{self._toolkit.capability[0]}{self._toolkit.capability[1]}"
        try:
            return replayer.kernel_facts(recorded, name)
        except (Failure, Ended):
            return []


# What to do without, the fewest first. `WIDE_LANDLOCK` takes the place of `LANDLOCK`.
_FILES = ((), (sandbox.LANDLOCK,), (sandbox.LANDLOCK, sandbox.WIDE_LANDLOCK))
_OTHERS = (sandbox.NAMESPACES, sandbox.SECCOMP, sandbox.RLIMITS)
_FEWER = tuple(
    (*files, *others)
    for size in range(len(_OTHERS) + 1)
    for others in combinations(_OTHERS, size)
    for files in _FILES
)  # fmt: skip
_tried: list[tuple[str, ...]] = []  # what a child must do without on this machine


def started_on_gpu(nursery: Nursery, folder: Path, limits: Limits) -> Child:
    """Start the candidate's process on a GPU, with as many protections as leave it the GPU."""
    for without in _tried[:1] or _FEWER:
        child = nursery.child("record-on-gpu", str(folder), limits, confined=True, on_gpu=True, without=without)
        with suppress(Ended):
            child.ready()
            if child.no_gpu is None:
                _tried[:] = [without]
                return child
        why = child.no_gpu or child.printed()
        child.end()
    message = f"the candidate's process cannot use the GPU: {' '.join(why.split())[:200]}"
    raise Failure(
        Reason("cuda-sources", "loads", message, "Is the GPU free, and its driver that of PyTorch?"), open=True
    )
