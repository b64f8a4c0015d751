"""The candidate's process on a GPU: as without one, but for real device memory and for extensions that are built."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tilesmith import messages
from tilesmith.lab.check.context import poisoned_memory
from tilesmith.lab.judge.cuda import sources
from tilesmith.lab.judge.cuda.device_tape import DeviceTape, dimensions
from tilesmith.lab.judge.cuda.driver import Images
from tilesmith.lab.judge.isolation.arena import Arena
from tilesmith.lab.judge.recording.worker import Session, serve
from tilesmith.toolchain.interpreter import handing_over

_RECORDER = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint64, ctypes.c_uint64,
    ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip


def record_on_gpu(channel: socket.socket, arena: Arena, facts: dict[str, Any]) -> None:
    """Answer requests until the judge closes the channel."""
    try:
        torch.zeros(1, device="cuda")
    except Exception as error:  # the protections keep this process from the GPU
        messages.send(channel, {"ready": facts["protections"], "no_gpu": str(error)[:500]})
        return
    serve(channel, GpuSession(arena, Path(facts["scratch"]), channel), facts)


class GpuSession(Session):
    """One candidate, its extensions, and the call whose gradients may be asked for."""

    def __init__(self, arena: Arena, folder: Path, channel: socket.socket, device: str = "cuda") -> None:
        super().__init__(arena, folder)
        self._channel = channel
        self._device = device
        self._callbacks: list[Any] = []  # C code holds them
        torch.autograd.set_multithreading_enabled(False)  # launches of a backward come in this thread
        self._take_over_builder()

    def _take_over_builder(self) -> None:
        from torch.utils import cpp_extension

        stock: dict[str, Any] = {name: getattr(cpp_extension, name) for name in ("load", "load_inline")}
        forms = {name: inspect.signature(one) for name, one in stock.items()}

        def load_inline(*given: Any, **named: Any) -> Any:
            chosen = forms["load_inline"].bind(*given, **named).arguments
            return self._built(sources.of_inline(**chosen), chosen.get("is_python_module", True))

        def load(*given: Any, **named: Any) -> Any:
            chosen = forms["load"].bind(*given, **named).arguments
            files = {"sources": chosen.pop("sources"), "folder": self._folder}
            return self._built(sources.of_files(**files, **chosen), chosen.get("is_python_module", True))

        for name, function in {"load": load, "load_inline": load_inline}.items():
            setattr(cpp_extension, name, function)

    def _built(self, request: dict[str, Any], as_python: bool) -> Any:
        """Let the judge build an extension, and load it with its launches recorded."""
        messages.send(self._channel, {"build": request})
        built = messages.receive(self._channel)
        name = built["module"]
        places = [built["library"], *built["images"]]
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        for number, (at, length) in enumerate(places):
            file = folder / (f"{number}.cubin" if number else f"{name}.so")
            new = file.with_suffix(f".{os.getpid()}")
            new.write_bytes(bytes(self._arena.bytes_at(at, length)))
            os.replace(new, file)  # another process of this candidate may have loaded the file
        library = folder / f"{name}.so"
        module = None
        if as_python:
            module = self._imported(name, library)
        else:  # it registers operators
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]  # PyTorch has no types here
        callback = _RECORDER(self._heard(built["digest"], Images(folder)))
        self._callbacks.append(callback)
        ctypes.CDLL(str(library)).tilesmith_record_launches(callback)
        return module

    def _imported(self, name: str, library: Path) -> Any:
        found = importlib.util.spec_from_file_location(name, library)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
        return module

    def _heard(self, digest: str, images: Images) -> Callable[..., None]:
        def heard(kind: int, name: bytes, numbers: Any, *told: Any) -> None:
            if isinstance(self._listening, DeviceTape):
                self._listening.heard(kind, digest, name.decode(errors="replace"), dimensions(numbers), images, told)

        return heard

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super()._load(request)
        if isinstance(self._function, torch.nn.Module):
            self._function.to(self._device)
        return answer

    def _new_tape(self, **choices: Any) -> DeviceTape:
        return DeviceTape(str(self._folder), self._device, **choices)

    def _watching(self, tape: Any, on_gpu: list[torch.Tensor] | None = None) -> ExitStack:
        """Return a context in which the tape sees launches and operators."""
        stack = ExitStack()
        stack.enter_context(poisoned_memory())
        stack.enter_context(handing_over(tape or self._new_tape()))
        self._listening = tape
        stack.callback(self._stop_listening)
        if tape is not None:
            stack.enter_context(tape)
        return stack

    _listening: Any = None

    def _stop_listening(self) -> None:
        self._listening = None
        if self._device == "cuda":
            torch.cuda.synchronize()  # an error of a kernel belongs to this call

    def _content(self, at: int, length: int) -> torch.Tensor:
        """Return the bytes of one storage on the GPU, at an address that differs between calls."""
        pad = torch.empty(self._shift + 1, dtype=torch.uint8, device=self._device)
        content = self._arena.storage_at(at, length).clone().to(self._device)
        del pad
        return content
