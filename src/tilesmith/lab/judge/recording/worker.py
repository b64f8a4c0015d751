"""The candidate's process: load it, call it on inputs in shared memory, answer with a tape and the outputs' bytes.

The process sees one call's inputs at a time. It knows neither the task nor what is expected.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from tilesmith import messages
from tilesmith.hardware.devices import device as named_device
from tilesmith.lab.check.context import poisoned_memory
from tilesmith.lab.inspect.running.gpu_stand_in import gpu_stand_in
from tilesmith.lab.inspect.running.tensor_tracker import TensorTracker
from tilesmith.lab.judge.isolation.arena import Arena, aligned, view_of
from tilesmith.lab.judge.recording import forcing, plain_values
from tilesmith.lab.judge.recording.candidate_module import MODULE_NAME, function_of, load
from tilesmith.lab.judge.recording.circumstances import MANY_CALLS, OTHER_GPU, THREAD, TURNED, around
from tilesmith.lab.judge.recording.plain_values import dtype_name, dtype_named
from tilesmith.lab.judge.recording.tape import Ignored, Tape, bytes_of
from tilesmith.spec import called, described
from tilesmith.toolchain.interpreter import handing_over

PRETENDED_DEVICE = "h200"
OTHER_DEVICE = "a100"
KEPT_OUTPUTS = 12
MOST_CALLS = 5000
SECONDS_FOR_CALLS = 0.25


def record(channel: socket.socket, arena: Arena, facts: dict[str, Any]) -> None:
    """Answer requests until the judge closes the channel."""
    serve(channel, Session(arena, Path(facts["scratch"])), facts)


def serve(channel: socket.socket, session: Session, facts: dict[str, Any]) -> None:
    """Answer requests by a session until the judge closes the channel."""
    messages.send(channel, {"ready": facts["protections"]})
    while True:
        try:
            request = messages.receive(channel)
        except messages.Closed:
            return
        messages.send(channel, session.answer(request))


class Session:
    """One candidate: its function, and the call whose gradients may be asked for."""

    _device = "cpu"
    _pretended = PRETENDED_DEVICE

    def __init__(self, arena: Arena, folder: Path) -> None:
        self._arena = arena
        self._folder = folder
        self._main = ""
        self._function: Any = None
        self._outputs: list[torch.Tensor] = []
        self._leaves: dict[str, torch.Tensor] = {}
        self._tape: Tape | None = None
        self._room = 0
        self._shift = 0  # of the inputs' places in the arena
        self._contents: dict[str, torch.Tensor] = {}  # storages of this call, likewise
        self._given: dict[str, torch.Tensor] = {}  # inputs of this call by their place in the arena
        self._alive: deque[Any] = deque(maxlen=KEPT_OUTPUTS)  # a caller may keep earlier outputs
        self._truths = forcing.Truths()
        self._tracker = TensorTracker(lambda tensors: None, pretend_gpu=True)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request, in a thread of its own if the judge wants that."""
        if request.get("circumstance") == THREAD:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self._answer, request).result()
        return self._answer(request)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return getattr(self, f"_{request['do']}")(request)  # type: ignore[no-any-return]  # dicts, all of them
        except BaseException as error:
            return {"error": described(error, str(self._folder / self._main)), "kind": type(error).__name__,
                    "tape": self._written_tape()}  # fmt: skip

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        self._main = request["main"]
        init = [plain_values.decode(one, self._input_tensor) for one in request["init"]]
        torch.manual_seed(request["seed"])
        with self._watching(None):
            module = load(self._folder, self._main, self._loader(request["turned"]))
            self._function = function_of(module, request["names"], init)
        parameters = plain_values.decode(request["parameters"], self._input_tensor)
        return {"loaded": True, "bound": self._fits(parameters), "asked": self._truths.taken()}

    def _loader(self, turned: str | None) -> Any:
        """Return what imports the candidate with its conditions marked, one inverted; None for a plain import."""
        if turned is None:
            return None
        self._truths.turned = turned
        forcing.mark_imports(self._folder, self._truths)
        return forcing.Loader(MODULE_NAME, str(self._folder / self._main), self._folder)

    def _fits(self, parameters: dict[str, torch.Tensor]) -> bool:
        """Return whether the candidate is a module with exactly the task's parameters."""
        if not parameters or not isinstance(self._function, torch.nn.Module):
            return False
        own = dict([*self._function.named_parameters(), *self._function.named_buffers()])
        shapes = {name: (one.shape, one.dtype) for name, one in own.items()}
        return shapes == {name: (one.shape, one.dtype) for name, one in parameters.items()}

    def _bind(self, parameters: dict[str, torch.Tensor]) -> None:
        """Let the candidate's module use the task's parameters, in the arena."""
        if self._fits(parameters):
            for name, one in [*self._function.named_parameters(), *self._function.named_buffers()]:
                one.data = parameters[name]

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call the function once. With `record`, answer with the tape and the outputs."""
        self._given, self._shift = {}, request["shift"]
        inputs = {name: plain_values.decode(value, self._input_tensor) for name, value in request["inputs"].items()}
        given = dict(self._given)
        self._bind(inputs.pop("parameters", {}))
        self._leaves = {name: inputs[name].detach().requires_grad_() for name in request["leaves"]}
        self._room = aligned(request["room"])
        if request["circumstance"] == MANY_CALLS:
            self._call_often(inputs, list(given.values()), request)
        made = self._recorded(inputs, given, request)
        self._alive.append(made)
        if request["again"]:
            self._call_with_others(inputs, request)
        changed = [inputs[name] for name in request.get("changed", ())]
        form, outputs = _as_list(() if made is None and changed else made)
        self._outputs = outputs = [*outputs, *changed]
        if not request["record"]:
            return {"done": True}
        written = [self._written(one) for one in outputs]
        return {"form": form, "outputs": written, "tape": self._written_tape(), "asked": self._truths.taken()}

    def _recorded(self, inputs: dict[str, Any], given: dict[str, torch.Tensor], request: dict[str, Any]) -> Any:
        """Call the function with a new tape, and return what it returns."""
        choices = {name: request[name] for name in ("perform", "configuration", "tf32")}
        tape = self._tape = self._new_tape(**choices)
        for at, tensor in given.items():
            tape.add_input(tensor, at)
        circumstance = request["circumstance"]
        self._pretended = OTHER_DEVICE if circumstance == OTHER_GPU else PRETENDED_DEVICE
        self._truths.turned = circumstance.removeprefix(TURNED) if circumstance.startswith(TURNED) else ""
        with (
            self._watching(tape, list(given.values())),
            torch.set_grad_enabled(bool(self._leaves)),
            around(circumstance, self._device),
        ):
            return self._called({**inputs, **self._leaves}, request)

    def _call_often(self, inputs: dict[str, Any], on_gpu: list[torch.Tensor], request: dict[str, Any]) -> None:
        """Call the function again and again, and note nothing."""
        deadline = time.monotonic() + SECONDS_FOR_CALLS
        with self._watching(None, on_gpu), handing_over(Ignored()), torch.set_grad_enabled(False):
            for _ in range(MOST_CALLS):
                if time.monotonic() > deadline:
                    return
                self._called(inputs, request)

    def _call_with_others(self, inputs: dict[str, Any], request: dict[str, Any]) -> None:
        """Call the function on other values between a call and its backward; nobody looks at the result."""
        others = {name: one.detach() * 0.5 for name, one in self._leaves.items()}
        given = {**inputs, **{name: one.requires_grad_() for name, one in others.items()}}
        choices = {name: request[name] for name in ("perform", "configuration", "tf32")}
        with self._watching(self._new_tape(**choices), list(others.values())):
            self._called(given, request)

    def _called(self, inputs: dict[str, Any], request: dict[str, Any]) -> Any:
        if request["style"] == "positional":
            return self._function(*inputs.values())
        if request["style"] == "packed":
            return self._function(tuple(inputs.values()))
        return called(self._function, inputs)

    def _backward(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compute the gradients of the last call's outputs."""
        assert self._tape is not None
        self._given, self._shift = {}, 0
        cotangents = [plain_values.decode(one, self._input_tensor) for one in request["cotangents"]]
        for at, tensor in self._given.items():
            self._tape.add_input(tensor, at)
        followed = [
            (output, cotangent)
            for output, cotangent in zip(self._outputs, cotangents, strict=True)
            if output.requires_grad and cotangent is not None
        ]
        if not followed:
            return {"gradients": {}, "tape": self._written_tape()}
        outputs, weights = zip(*followed, strict=True)
        given = [one for one in cotangents if one is not None]
        with self._watching(self._tape, given):
            found = torch.autograd.grad(outputs, list(self._leaves.values()), weights, allow_unused=True)
        gradients = {name: self._written(one) for name, one in zip(self._leaves, found, strict=True) if one is not None}
        return {"gradients": gradients, "tape": self._written_tape()}

    def _new_tape(self, **choices: Any) -> Tape:
        return Tape(str(self._folder), **choices)

    def _watching(self, tape: Tape | None, on_gpu: list[torch.Tensor] | None = None) -> ExitStack:
        """Return a context in which there seems to be a GPU, and the tape sees launches and operators."""
        for tensor in on_gpu or []:
            self._tracker.on_gpu(tensor)
        stack = ExitStack()
        stack.enter_context(poisoned_memory())
        stack.enter_context(gpu_stand_in(named_device(self._pretended)))
        stack.enter_context(handing_over(tape or self._new_tape()))
        stack.enter_context(self._tracker.watching())
        if tape is not None:
            stack.enter_context(tape)
        return stack

    def _input_tensor(self, reference: Any) -> torch.Tensor:
        """Return an input in the arena. The judge knows its storage by the place in the arena."""
        at, length, dtype, offset, size, stride = reference
        name = str(at - self._shift)
        if name not in self._given:  # two inputs may share memory
            self._contents[name] = self._content(at, length)
        self._given[name] = tensor = view_of(self._contents[name], dtype_named(dtype), offset, size, stride)
        return tensor

    def _content(self, at: int, length: int) -> torch.Tensor:
        """Return the bytes of one storage, in the memory that the candidate gets."""
        return self._arena.storage_at(at, length)

    def _written(self, output: torch.Tensor) -> dict[str, Any]:
        """Copy an output into the arena, and say where it is."""
        assert self._tape is not None
        facts: dict[str, Any] = {
            "dtype": dtype_name(output.dtype),
            "size": list(output.size()),
            "type": type(output).__name__,
            "reference": self._tape.reference(output),
            "has_gradient": _has_own_gradient(output),
        }
        content = output.detach().contiguous()
        facts["at"] = self._put(bytes_of(content.clone()))
        return facts

    def _written_tape(self) -> dict[str, Any] | None:
        """Return the tape, with the constants in the arena."""
        if self._tape is None:
            return None
        for number, content in self._tape.constants.items():
            if "at" not in self._tape.storages[number]:
                self._tape.storages[number]["at"] = self._put(content)
        return self._tape.as_json()

    def _put(self, content: torch.Tensor) -> int:
        at, length = self._room, content.numel()
        if length:
            self._arena.storage_at(at, length).copy_(content)
        self._room = aligned(at + length)
        return at


def _has_own_gradient(output: torch.Tensor) -> bool:
    """Return whether a gradient of the candidate's own, not only one of PyTorch's copies, leads to this output."""
    waiting: list[Any] = [output.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        seen.add(node)
        waiting.extend(one for one, _ in node.next_functions)
    return False


def _as_list(made: Any) -> tuple[str, list[torch.Tensor]]:
    """Return how the outputs came, and the outputs."""
    form = "tensor" if isinstance(made, torch.Tensor) else type(made).__name__
    values = [made] if isinstance(made, torch.Tensor) else list(made.values()) if isinstance(made, dict) else made
    if not isinstance(values, list | tuple) or not all(isinstance(one, torch.Tensor) for one in values):
        raise TypeError(f"returns a {type(made).__name__}, not a tensor or a tuple of tensors")
    return form, list(values)
