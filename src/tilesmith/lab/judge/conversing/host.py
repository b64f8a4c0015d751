"""The candidate's process of a conversation: performs what the judge asks, and passes calls of its objects on.

Some functions of PyTorch, Triton and Python can be those of the judge: a GPU with its own clock, a timer. The judge
names them in each request.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from tilesmith import messages
from tilesmith.lab.judge.conversing.lent import look_up_late
from tilesmith.lab.judge.conversing.wire import Wire
from tilesmith.lab.judge.isolation.arena import Arena
from tilesmith.lab.judge.recording.candidate_module import load
from tilesmith.spec import described
from tilesmith.toolchain.interpreter import interpreting

BY_REFERENCE = ("triton.runtime.autotuner.Autotuner.run",)  # a tuner runs its kernels on the caller's own tensors


def converse(channel: socket.socket, arena: Arena, facts: dict[str, Any]) -> None:
    """Answer requests until the judge closes the channel."""
    messages.send(channel, {"ready": facts["protections"]})
    host = _Host(channel, Path(facts["scratch"]))
    with interpreting():
        while True:
            try:
                request = messages.receive(channel)
            except messages.Closed:
                return
            messages.send(channel, host.answer(request))


class _Host:
    """The program, and its side of the conversation."""

    def __init__(self, channel: socket.socket, folder: Path) -> None:
        self._channel = channel
        self._folder = folder
        self._main = ""
        self._module: ModuleType | None = None
        self._wire = Wire(lambda number, text: _Theirs(self, number))
        self._files: list[Path] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"answer": getattr(self, f"_{request['do']}")(request)}
        except BaseException as error:
            missing = isinstance(error, AttributeError) and request["do"] == "get"
            return {"error": described(error, str(self._folder / self._main)), "missing": missing}

    def ask(self, question: dict[str, Any]) -> Any:
        """Send the judge a request, and answer its own requests until its reply comes."""
        messages.send(self._channel, {"question": question})
        while True:
            told = messages.receive(self._channel)
            if "do" in told:
                messages.send(self._channel, self.answer(told))
            elif "error" in told:
                raise RuntimeError(told["error"])
            else:
                return self._wire.decode(told["reply"])

    def call_theirs(self, target: dict[str, Any], given: Sequence[Any], named: dict[str, Any], tensors: bool) -> Any:
        encoded = {
            "args": [self._wire.encode(one, tensors=tensors) for one in given],
            "named": {name: self._wire.encode(one, tensors=tensors) for name, one in named.items()},
        }
        return self.ask({**target, **encoded})

    def _load(self, request: dict[str, Any]) -> Any:
        self._main = request["main"]
        self._module = load(self._folder, self._main)
        look_up_late(self._module)
        return self._wire.encode(self._module)

    def _get(self, request: dict[str, Any]) -> Any:
        return self._wire.encode(getattr(self._wire.mine(request["of"]), request["name"]))

    def _set(self, request: dict[str, Any]) -> Any:
        setattr(self._wire.mine(request["of"]), request["name"], self._wire.decode(request["value"]))

    def _call(self, request: dict[str, Any]) -> Any:
        self._files = []
        given = [self._wire.decode(one, self._file) for one in request["args"]]
        named = {name: self._wire.decode(one, self._file) for name, one in request["named"].items()}
        log = _Log() if request["watched"] else None
        with self._lent(request["lent"]), log or nullcontext():
            result = self._wire.mine(request["of"])(*given, **named)
        return {
            "result": self._wire.encode(result),
            "files": [one.read_text() if one.is_file() else None for one in self._files],
            "log": [[name, self._wire.encode(args), self._wire.encode(made)] for name, args, made in log.calls]
            if log
            else [],
        }

    def _file(self, name: str, text: str | None) -> Path:
        path = self._folder / Path(name).name
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        self._files.append(path)
        return path

    @contextmanager
    def _lent(self, names: Sequence[str]) -> Iterator[None]:
        with ExitStack() as stack:
            for name in names:
                owner, _, last = name.rpartition(".")
                stack.enter_context(mock.patch.object(_found(owner), last, self._lent_function(name)))
            yield

    def _lent_function(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            return self.call_theirs({"lent": name}, given, named, name not in BY_REFERENCE)

        return call


def _found(name: str) -> Any:
    """Return the module, or the class of a module, with this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(importlib.import_module(module), last)


class _Theirs:
    """An object of the judge: its call, and its public methods."""

    def __init__(self, host: _Host, number: int) -> None:
        self._host, self._number = host, number

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._host.call_theirs({"of": self._number}, given, named, True)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *given, **named: self._host.call_theirs(
            {"of": self._number, "method": name}, given, named, tensors=True
        )


class _Log(TorchFunctionMode):
    """Every function of PyTorch that a call uses, with its arguments and its result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.__name__ != "__get__":
            tensors = (*args, *(kwargs or {}).values())
            self.calls.append((function.__name__, tensors, result if isinstance(result, torch.Tensor) else None))
        return result
