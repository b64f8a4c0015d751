"""Run the launches of trials once, each tensor in memory of exactly its length: compute-sanitizer watches this."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tilesmith.lab.judge.cuda.launching import CudaKernels
from tilesmith.lab.judge.replaying.device import DeviceMemory, DeviceReplay
from tilesmith.lab.judge.timing.device_sets import on_gpu
from tilesmith.toolchain.portable import RebuiltKernels


def main(built: Path, folder: Path) -> None:
    """Run each trial of a folder with the device code of another."""
    kernels = CudaKernels(built)
    for trial in sorted(folder.iterdir()):
        tape = json.loads((trial / "tape.json").read_text())
        memory = DeviceMemory(tape["storages"], _contents(trial / "constants"), "cuda", exact=True)
        memory.reset()
        memory.fill(_contents(trial / "inputs"))
        replay = DeviceReplay(
            tape, memory, RebuiltKernels(tape["kernels"], trial), on_gpu, allow_any=True, cuda=kernels
        )
        replay.run(tf32=True)
        torch.cuda.synchronize()


def _contents(folder: Path) -> dict[str, Tensor]:
    return {one.name: torch.from_numpy(np.fromfile(one, dtype=np.uint8)) for one in folder.iterdir()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
