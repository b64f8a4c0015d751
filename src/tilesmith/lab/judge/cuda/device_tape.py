"""A tape on a GPU: PyTorch's operators as elsewhere, and the launches of CUDA kernels that a recorder reports."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tilesmith.lab.judge.cuda.driver import Images, address_range
from tilesmith.lab.judge.cuda.launch_recorder import COPY, DIMENSIONS, FILL, LAUNCH
from tilesmith.lab.judge.recording.plain_values import Reference
from tilesmith.lab.judge.recording.tape import Tape
from tilesmith.toolchain.interpreter import Launched, launch_as_usual

_LEGACY_STREAMS = (0, 1)


class DeviceTape(Tape):  # type: ignore[no-untyped-call]  # PyTorch has no types here
    """Also knows storages by their addresses: a launch holds no tensors, only pointers."""

    def __init__(self, folder: str, device: str = "cuda", **choices: Any) -> None:
        """`device` is "cpu" in tests alone: then pointers are those of the host."""
        super().__init__(folder, **choices)
        self._device = device
        self._cuda_kernels: dict[tuple[str, str], int] = {}

    def reference(self, tensor: torch.Tensor) -> Reference:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers and storage.nbytes() and storage.device.type == self._device:
            known = self._known_at(storage.data_ptr())
            if known is not None:  # memory that a pointer reached first
                number, offset = known
                at = tensor.storage_offset() + offset // tensor.element_size()
                return [
                    number,
                    str(tensor.dtype).removeprefix("torch."),
                    at,
                    list(tensor.size()),
                    list(tensor.stride()),
                ]
        return super().reference(tensor)

    def launch(self, launched: Launched) -> Any:
        """Note a launch of Triton, and perform it on the GPU."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if launched.warmup:
                return launch_as_usual(launched)
            self._note_launch(launched)
            try:
                return launch_as_usual(launched)
            except Exception as error:  # a confined process starts no assembler
                name = launched.kernel.__name__
                self._add({"opaque": f"kernel {name} of Triton beside CUDA sources ({type(error).__name__})"})

    def heard(self, kind: int, digest: str, name: str, numbers: Sequence[int], images: Images, told: Any) -> None:
        """Note what the recorder tells. `told` is what it calls first, second, third, stream and arguments."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            try:
                first, second, third, stream, arguments = told
                if (stream or 0) not in (*_LEGACY_STREAMS, self._stream()):
                    self._add({"opaque": f"{_readable(name)} on a stream other than PyTorch's current one"})
                elif kind == LAUNCH:
                    self._note_cuda_launch(digest, name, numbers, int(first), images, arguments)
                elif kind == FILL:
                    where = self._bytes_at(first, third)
                    self._add({"operator": "aten::fill_.Scalar", "args": [where, int(second)], "kwargs": {},
                               "results": [where["tensor"]]})  # fmt: skip
                elif kind == COPY:
                    self._note_copy(name, first, second, third)
                else:
                    self._add({"opaque": f"the host code calls {name}"})
            except Exception as error:  # nothing may leave a callback of C
                self._add({"opaque": f"{_readable(name)} ({type(error).__name__}: {str(error)[:120]})"})

    def _note_cuda_launch(
        self, digest: str, name: str, numbers: Sequence[int], shared: int, images: Images, arguments: Any
    ) -> None:
        function = images.function(name)
        if function is None:
            self._add({"opaque": f"kernel {_readable(name)}, which the device code does not hold"})
            return
        given = {
            str(number): self._parameter(ctypes.string_at(arguments[number], size))
            for number, size in enumerate(function.sizes)
        }
        options = {
            "block": list(numbers[3:6]), "shared": shared, "cluster": list(numbers[6:9]),
            "cooperative": bool(numbers[9]), "early": bool(numbers[10]),
        }  # fmt: skip
        kernel = self._cuda_kernel(digest, name)
        self._add({"kernel": kernel, "grid": list(numbers[:3]), "arguments": given, "options": options})

    def _cuda_kernel(self, digest: str, name: str) -> int:
        key = (digest, name)
        if key not in self._cuda_kernels:
            self._cuda_kernels[key] = len(self.kernels.descriptions)
            file, _, line = self._line().rpartition(":")
            self.kernels.descriptions.append(
                {"name": _readable(name), "symbol": name, "cuda": digest, "text": "", "file": file,
                 "line": int(line or 0)}
            )  # fmt: skip
        return self._cuda_kernels[key]

    def _note_copy(self, name: str, to: int, source: int, length: int) -> None:
        there, here = address_range(to) is not None, address_range(source) is not None
        if there and here:
            where, read = self._bytes_at(to, length), self._bytes_at(source, length)
            self._add({"operator": "aten::copy_", "args": [where, read], "kwargs": {}, "results": [where["tensor"]]})
        elif here:
            self.host_reads.append(f"{name} at {self._line()}")
        else:
            self._add({"opaque": f"{name} from memory of the host"})

    def _stream(self) -> int:
        """Return PyTorch's current stream, as a number."""
        return int(torch.cuda.current_stream().cuda_stream) if self._device == "cuda" else 0

    def _parameter(self, content: bytes) -> dict[str, Any]:
        """Return the bytes of a parameter, and which of them point to a storage: also inside a structure."""
        pointers, plain = [], bytearray(content)
        for at in range(0, len(content) - 7, 8):
            known = self._storage_at(int.from_bytes(content[at : at + 8], "little"))
            if known is not None:
                number, offset = known
                pointers.append([at, {"tensor": [number, "uint8", offset, [], []]}])
                plain[at : at + 8] = bytes(8)  # addresses differ between calls that do the same
        return {"bytes": plain.hex(), "pointers": pointers}

    def _bytes_at(self, address: int, length: int) -> dict[str, Any]:
        known = self._storage_at(address)
        if known is None:
            raise ValueError("memory that is no tensor")
        return {"tensor": [known[0], "uint8", known[1], [length], [1]]}

    def _storage_at(self, address: int) -> tuple[int, int] | None:
        """Return the storage that holds an address, and the offset. Memory from before the call is a constant."""
        known = self._known_at(address)
        if known is not None or address < 1 << 20:
            return known
        block = _block_at(address) or address_range(address) if self._device == "cuda" else None
        if block is None:
            return None
        content = torch.as_tensor(_Raw(*block), device=self._device)
        number = self._register(content, {"kind": "constant"})
        self.constants[number] = content.clone()
        return number, address - block[0]

    def _known_at(self, address: int) -> tuple[int, int] | None:
        for number in range(len(self._kept) - 1, -1, -1):
            storage = self._kept[number]
            if storage.device.type == self._device and 0 <= address - storage.data_ptr() < storage.nbytes():
                return number, address - storage.data_ptr()
        for number, storage in enumerate(self._kept):  # the end of an array
            if (
                storage.device.type == self._device
                and storage.nbytes()
                and address - storage.data_ptr() == storage.nbytes()
            ):
                return number, storage.nbytes()
        return None


class _Raw:
    """Device memory by its address, as `torch.as_tensor` takes it."""

    def __init__(self, start: int, length: int) -> None:
        self.__cuda_array_interface__ = {"data": (start, False), "shape": (length,), "typestr": "|u1", "version": 3}


def _block_at(address: int) -> tuple[int, int] | None:
    """Return the start and length of the block of PyTorch's allocator that holds an address."""
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]  # likewise
        start = segment["address"]
        if not start <= address < start + segment["total_size"]:
            continue
        for block in segment["blocks"]:
            if start <= address < start + block["size"]:
                return start, int(block.get("requested_size") or block["size"])
            start += block["size"]
    return None


def _readable(symbol: str) -> str:
    """Return the function's own name inside a mangled one."""
    found: list[str] = []
    rest = re.sub(r"^_ZN?K?", "", symbol) if symbol.startswith("_Z") else ""
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match.group())
        found.append(rest[match.end() : end])
        rest = rest[end:]
        if not symbol.startswith("_ZN"):
            break
    return found[-1] if found else symbol


def dimensions(pointer: Any) -> list[int]:
    """Return the numbers behind the recorder's third argument."""
    return [int(pointer[number]) for number in range(DIMENSIONS)] if pointer else []
