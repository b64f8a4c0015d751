"""Launches of CUDA kernels on a tape, in the process that replays it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilesmith.lab.judge.cuda.driver import Function, Images
from tilesmith.lab.judge.cuda.toolkit import BUILT
from tilesmith.lab.judge.replaying.memory import BadTape, checked_reference

MOST_PARAMETER_BYTES = 1 << 15
Address = Callable[[int], tuple[int, int]]  # of a storage: its address on the device, and its bytes


@dataclass(frozen=True)
class CudaLaunch:
    """One launch, with parameters for one memory."""

    function: Function
    grid: tuple[int, ...]
    parameters: list[bytes]
    options: Mapping[str, Any]

    def run(self) -> None:
        """Launch on PyTorch's current stream."""
        options = self.options
        self.function.launch(
            self.grid, _numbers(options["block"]), int(options["shared"]), torch.cuda.current_stream().cuda_stream,
            self.parameters, cluster=_numbers(options["cluster"]), cooperative=bool(options["cooperative"]),
            early=bool(options["early"]),
        )  # fmt: skip


class CudaKernels:
    """The device code that the judge built, by digest, below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / BUILT
        self._images: dict[str, Images] = {}

    def launch(self, step: Mapping[str, Any], kernel: Mapping[str, Any], address: Address) -> CudaLaunch:
        """Return the launch of a step. Raises BadTape for one that the tape cannot hold."""
        function = self._function(kernel)
        arguments = list(step["arguments"].values())
        if len(arguments) != len(function.sizes):
            raise BadTape(f"a launch with {len(arguments)} arguments of a kernel with {len(function.sizes)}")
        parameters = [_parameter(one, size, address) for one, size in zip(arguments, function.sizes, strict=True)]
        return CudaLaunch(function, _numbers(step["grid"]), parameters, step["options"])

    def facts(self, kernel: Mapping[str, Any]) -> dict[str, int]:
        """Return registers, and bytes of local and shared memory, of a kernel."""
        return self._function(kernel).facts()

    def _function(self, kernel: Mapping[str, Any]) -> Function:
        digest, name = str(kernel["cuda"]), str(kernel["symbol"])
        if not re.fullmatch("[0-9a-f]{16}", digest) or not (self._folder / digest).is_dir():
            raise BadTape("a kernel that the judge did not build")
        if digest not in self._images:
            torch.zeros(1, device="cuda")  # makes the context that modules belong to
            self._images[digest] = Images(self._folder / digest)
        found = self._images[digest].function(name)
        if found is None:
            raise BadTape(f"a kernel {name[:60]!r} that the device code does not hold")
        return found


def _numbers(value: Any) -> tuple[int, ...]:
    made = tuple(int(one) for one in value)
    if len(made) != 3 or any(not 0 < one < 1 << 31 for one in made):
        raise BadTape(f"a launch of {str(made)[:60]}")
    return made


def _parameter(encoded: Any, size: int, address: Address) -> bytes:
    """Return the bytes of one parameter, with the addresses of this memory in the place of the recorded ones."""
    content = bytearray.fromhex(str(encoded["bytes"]))
    if len(content) != size or size > MOST_PARAMETER_BYTES:
        raise BadTape(f"a parameter of {len(content)} bytes in the place of {size}")
    for at, pointer in encoded["pointers"]:
        number, _, offset, _, _ = checked_reference(pointer["tensor"], 1 << 31)
        start, length = address(number)
        if not 0 <= int(at) <= size - 8 or offset > length:
            raise BadTape("a pointer outside its parameter or storage")
        content[int(at) : int(at) + 8] = (start + offset).to_bytes(8, "little")
    return bytes(content)
