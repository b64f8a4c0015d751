"""Who computes a call: our kernels on the GPU, our kernels in the interpreter, or PyTorch.

`use("auto")`, the default, follows measurements on this device. The other modes are fixed. `use(...)` as a call holds
for the whole process. `with use(...):` holds for its block alone: other threads and asyncio tasks keep their own state.
A backward runs in the state of its forward, whatever thread PyTorch runs it in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from tilesmith.toolchain import interpreter

Mode = Literal["auto", "triton", "torch", "interpret"]
MODES: tuple[str, ...] = get_args(Mode)


class State(NamedTuple):
    """Everything outside the arguments that decides how a call runs."""

    mode: Mode = "auto"
    overrides: tuple[tuple[str, Any], ...] = ()
    debug: bool = False
    measure: bool = False


class Current:
    """A state and its number in cache keys: hashing an integer at every call is cheaper than hashing the state."""

    __slots__ = ("epoch", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.epoch = next(_epochs)


class _OfThread(threading.local):
    """The mode of a block as torch.compile sees it: it can guard a text of a thread, but no ContextVar or object."""

    def __init__(self) -> None:  # once per thread; PyTorch 2.11 would read a default of the class in every block
        self.mode: Mode | None = None


MOST_STATES = 1024  # kept with their epochs; bounds the memory of a sweep
MOST_PENDING = 64  # calls of `use` that may still become blocks

_lock = threading.Lock()
_epochs = count()
_known: dict[State, Current] = {}
_own: ContextVar[Current | None] = ContextVar("tilesmith_state", default=None)
_of_thread = _OfThread()
_base = State(debug=os.environ.get("TILESMITH_DEBUG", "0") not in ("", "0"))
_pending: list[_Restoring] = []
_of_process = Current(_base)


def current() -> Current:
    """Return the state of this context: of its innermost block, or else of the process."""
    return _own.get() or _of_process


def state() -> State:
    return current().state


def mode() -> Mode:
    """Return who computes. Traced by torch.compile too, unlike the rest of the state."""
    if torch.compiler.is_compiling():
        return _of_thread.mode or _of_process.state.mode
    return (_own.get() or _of_process).state.mode


def epoch() -> int:
    """Return the number of the state in cache keys."""
    return current().epoch


def forget() -> None:
    """Make later calls plan again, because something outside the state changed, such as tuned configurations."""
    for one in {_of_process, current(), *_known.values()}:
        one.epoch = next(_epochs)


def _numbered(new: State) -> Current:
    """Return the state with its epoch: the same whenever this state comes back."""
    found = _known.get(new)
    if found is None:
        if len(_known) >= MOST_STATES:
            _known.clear()
        found = _known[new] = Current(new)
    return found


def _enter(own: Current | None) -> None:
    _own.set(own)
    _of_thread.mode = None if own is None else own.state.mode


@contextmanager
def entered(own: Current) -> Iterator[None]:
    """Run a block in a state that was current elsewhere."""
    before = _own.get()
    _enter(own)
    try:
        yield
    finally:
        _enter(before)


class _Restoring:
    """Changes the state when created. As a context manager it holds for the block, and for this context, alone."""

    def __init__(self, change: Callable[[State], State]) -> None:
        self._change = change
        self._new = _numbered(change(state()))
        self._befores = [_own.get()]
        self._entered = False
        if self._befores[0] is not None:  # inside a block: until that block ends
            _enter(self._new)
        else:
            _change_process(add=self)

    def __enter__(self) -> None:
        if self._entered:
            self._befores.append(_own.get())
        elif self._befores[0] is None:
            _change_process(remove=self)
        self._entered = True
        _enter(self._new)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _enter(self._befores.pop() if len(self._befores) > 1 else self._befores[0])


def _change_process(add: _Restoring | None = None, remove: _Restoring | None = None) -> None:
    """Add a change to the state of the process, or remove it, in whatever order threads do so."""
    global _base, _of_process
    with _lock:
        if add is not None:
            _pending.append(add)
        if remove is not None and remove in _pending:
            _pending.remove(remove)
        if len(_pending) > MOST_PENDING:
            _base = _pending.pop(0)._change(_base)
        new = _base
        for one in _pending:
            new = one._change(new)
        _of_process = _numbered(new)


def use(mode: Mode, *, measure: bool = False) -> _Restoring:
    """Choose who computes: `use("triton")` from here on, or `with use("triton"):` for a block in this thread or task.

    - `auto`: our kernels on a GPU, unless PyTorch was measured or is predicted to be faster there; PyTorch on the CPU.
      With `measure=True` both are measured once, at the first sight of a call on a GPU, and the result is stored.
      Nothing is measured while a CUDA graph is captured.
    - `triton`: our kernels on a GPU, whatever was measured; PyTorch on the CPU.
    - `torch`: PyTorch everywhere.
    - `interpret`: our kernels on CPU tensors, in Triton's interpreter: slow, for debugging and tests.
    """
    if mode not in MODES:
        raise ValueError(f"use: mode is {mode!r}, but must be one of {', '.join(MODES)}")
    if measure and mode != "auto":
        raise ValueError(f"use: measure=True chooses between kernels and PyTorch, so mode must be auto, not {mode!r}")
    return _Restoring(lambda state: state._replace(mode=mode, measure=measure))


def debug(on: bool = True) -> _Restoring:
    """Check the values of arguments too, such as targets out of range: `debug()`, or `with debug():` for a block.

    Every call then waits for the GPU. The environment variable TILESMITH_DEBUG=1 turns it on from the start.
    """
    return _Restoring(lambda state: state._replace(debug=bool(on)))


def configured(**fields: Any) -> _Restoring:
    """Set fields of every kernel configuration that has them: `with configured(BLOCK_SIZE=256, num_warps=8):`."""
    return _Restoring(
        lambda state: state._replace(overrides=tuple(sorted({**dict(state.overrides), **fields}.items())))
    )


def kernels_can_run(tensor: Tensor) -> bool:
    """Whether our kernels can compute with this tensor in the current mode."""
    chosen = mode()
    if chosen == "torch":
        return False
    if tensor.is_cuda:
        return chosen != "interpret"
    if tensor.device.type == "cpu":
        return chosen == "interpret" or interpreter.is_interpreting()
    return tensor.device.type == "meta"
