"""A program in its confined process, as if it were a module here.

What the program says is data: it can neither change nor read what this process decides with. The functions of PyTorch
that a watched call reports are computed again here, so a report of a product that was never computed is found out.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import _get_current_function_mode

from tilesmith.lab.judge.conversing.lent import LENT
from tilesmith.lab.judge.conversing.wire import Wire
from tilesmith.lab.judge.isolation.children import Child, Ended
from tilesmith.lab.judge.recording.plain_values import NotPlain

DEEPEST = 50  # nested calls between the two processes
_ALIKE = {"rtol": 1e-2, "atol": 1e-2}  # another order of summation
_COMPUTED_AGAIN = {
    name: getattr(owner, name)
    for owner, names in {
        torch: ("mm", "matmul", "addmm", "bmm", "rsqrt", "sqrt", "mean", "square", "sum", "mul", "add", "div", "pow"),
        torch.Tensor: ("__matmul__", "__mul__", "__add__", "__truediv__", "__pow__", "__rmul__", "__radd__"),
        F: ("linear", "rms_norm"),
    }.items()
    for name in names
    if hasattr(owner, name)
}


class ProgramError(Exception):
    """The program raised an exception, or said something that is no answer."""


class Forged(Exception):
    """The program reported a computation whose result is another one."""


class Program:
    """The program of a confined child. Attributes are those of its module."""

    def __init__(self, child: Child, main: str) -> None:
        self._child = child
        self._depth = 0
        self._wire = Wire(lambda number, text: _Remote(self, number, text))
        self._module: Any = self._wire.decode(self.told({"do": "load", "main": main}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def call(self, number: int, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Call an object of the program. Files among the arguments are those of this process, before and after."""
        mode = _get_current_function_mode()  # type: ignore[no-untyped-call]  # PyTorch has no types here
        with torch._C.DisableTorchFunction():  # a watching mode sees the program's work, not ours
            return self._called(number, given, named, mode)

    def _called(self, number: int, given: tuple[Any, ...], named: Mapping[str, Any], mode: Any) -> Any:
        files: list[Path] = []
        self._wire.files = files
        request = {
            "do": "call",
            "of": number,
            "args": [self._wire.encode(one) for one in given],
            "named": {name: self._wire.encode(one) for name, one in named.items()},
            "lent": [name for name, (owner, last, original) in LENT.items() if getattr(owner, last) is not original],
            "watched": mode is not None,
        }
        answer = self.told(request)
        try:
            for file, text in zip(files, answer["files"], strict=True):
                if isinstance(text, str):
                    file.write_text(text)
            result = self._wire.decode(answer["result"])
            log = [(str(name), self._wire.decode(args), self._wire.decode(made)) for name, args, made in answer["log"]]
        except (NotPlain, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ProgramError(f"it answers with something that is no result ({error})") from None
        if mode is not None:
            _compute_again(mode, log)
        return result

    def get(self, number: int, name: str) -> Any:
        return self._decoded(self.told({"do": "get", "of": number, "name": name}))

    def set(self, number: int, name: str, value: Any) -> None:
        self.told({"do": "set", "of": number, "name": name, "value": self._wire.encode(value)})

    def told(self, request: dict[str, Any]) -> Any:
        """Send a request, answer the program's own questions, and return its answer."""
        self._depth += 1
        try:
            if self._depth > DEEPEST:
                raise ProgramError("its calls and those of the check never end")
            self._child.send(request)
            deadline = time.monotonic() + self._child.limits.seconds
            while True:
                message = self._child.receive(deadline)
                if "question" in message:
                    self._child.send(self._replied(message["question"]))
                elif "answer" in message:
                    return message["answer"]
                elif message.get("missing") is True:
                    raise AttributeError(str(message.get("error"))[:2000])
                else:
                    raise ProgramError(str(message.get("error"))[:2000])
        except Ended as ended:
            raise ProgramError(f"it {ended}") from None
        finally:
            self._depth -= 1

    def _decoded(self, message: Any) -> Any:
        try:
            return self._wire.decode(message)
        except (NotPlain, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ProgramError(f"it answers with something that is no value ({error})") from None

    def _replied(self, question: Any) -> dict[str, Any]:
        """Do what the program asks for: call a function that it was given, or one that is lent."""
        try:
            function = self._asked_for(question)
            given = [self._wire.decode(one) for one in question["args"]]
            named = {str(name): self._wire.decode(one) for name, one in question["named"].items()}
        except (NotPlain, KeyError, TypeError, ValueError) as error:
            raise ProgramError(f"it asks for something that is not there ({error})") from None
        try:
            return {"reply": self._wire.encode(function(*given, **named))}
        except (RuntimeError, TypeError, AttributeError) as error:  # as a library raises them
            return {"error": f"{type(error).__name__}: {error}"}

    def _asked_for(self, question: Any) -> Any:
        if "lent" in question:
            owner, name, original = LENT[question["lent"]]
            function = getattr(owner, name)
            if function is original:
                raise NotPlain(f"{question['lent']} is not lent")
            return function
        target = self._wire.mine(question["of"])
        name = question.get("method")
        if name is None:
            if not callable(target) or isinstance(target, type):
                raise NotPlain("a call of an object that is no function")
            return target
        method = getattr(type(target), str(name), None)
        if str(name).startswith("_") or not inspect.isfunction(method):
            raise NotPlain(f"a method {name!r}")
        return method.__get__(target)


def _compute_again(mode: Any, log: list[tuple[str, Any, Any]]) -> None:
    """Show the watching mode every function of a call; compute known ones again, and compare."""
    for name, args, made in log:
        function = _COMPUTED_AGAIN.get(name)
        if function is None:

            def unknown(*given: Any) -> None:
                return None

            unknown.__name__ = name
            mode.__torch_function__(unknown, (), tuple(args))
            continue
        try:
            found = mode.__torch_function__(function, (), tuple(args))
        except (RuntimeError, TypeError, IndexError) as error:
            raise Forged(f"{name} cannot be computed from the reported arguments: {error}") from None
        if not isinstance(made, torch.Tensor) or made.shape != found.shape or made.dtype != found.dtype:
            raise Forged(f"{name} of the reported arguments has another shape or dtype")
        if not torch.allclose(found.double(), made.double(), equal_nan=True, **_ALIKE):
            raise Forged(f"{name} of the reported arguments has another result")


class _Remote:
    """An object of the program."""

    def __init__(self, program: Program, number: int, text: str) -> None:
        vars(self).update(_program=program, _number=number, _text=text)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._program.call(self._number, given, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self)["_program"].get(vars(self)["_number"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.set(self._number, name, value)

    def __repr__(self) -> str:
        return str(vars(self)["_text"])
