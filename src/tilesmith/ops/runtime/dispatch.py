"""Who computes a call: our kernels on the GPU, our kernels in the interpreter, or PyTorch.

`use("auto")`, the default, follows measurements on this device. The other modes are fixed. The choice is process-wide:
a backward runs in another thread and must see the choice of its forward.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from tilesmith.toolchain import interpreter

Mode = Literal["auto", "triton", "torch", "interpret"]
MODES: tuple[str, ...] = get_args(Mode)


class State(NamedTuple):
    """Everything outside the arguments that decides how a call runs."""

    mode: str = "auto"
    overrides: tuple[tuple[str, Any], ...] = ()
    debug: bool = False
    measure: bool = False


_state = State(debug=os.environ.get("TILESMITH_DEBUG", "0") not in ("", "0"))
_epochs: dict[State, int] = {_state: 0}
_epochs_given = 0
epoch = 0
"""The state's number in cache keys: hashing an integer at every call is cheaper than hashing the state."""


def state() -> State:
    return _state


def forget() -> None:
    """Make later calls plan again, because something outside the state changed, such as tuned configurations."""
    _epochs.clear()
    _enter(_state)


def _enter(new: State) -> None:
    global _state, epoch, _epochs_given
    if new not in _epochs:
        _epochs_given += 1
        _epochs[new] = _epochs_given
    _state = new
    epoch = _epochs[new]


class _Restoring:
    """Sets the state when created; as a context manager it also restores the state before."""

    def __init__(self, new: State) -> None:
        self._before = _state
        _enter(new)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _enter(self._before)


def use(mode: Mode, *, measure: bool = False) -> _Restoring:
    """Choose who computes: `use("triton")` from here on, or `with use("triton"):` for a block.

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
    return _Restoring(_state._replace(mode=mode, measure=measure))


def debug(on: bool = True) -> _Restoring:
    """Check the values of arguments too, such as targets out of range: `debug()`, or `with debug():` for a block.

    Every call then waits for the GPU. The environment variable TILESMITH_DEBUG=1 turns it on from the start.
    """
    return _Restoring(_state._replace(debug=bool(on)))


def configured(**fields: Any) -> _Restoring:
    """Set fields of every kernel configuration that has them: `with configured(BLOCK_SIZE=256, num_warps=8):`."""
    return _Restoring(_state._replace(overrides=tuple(sorted({**dict(_state.overrides), **fields}.items()))))


def kernels_can_run(tensor: Tensor) -> bool:
    """Whether our kernels can compute with this tensor in the current mode."""
    if _state.mode == "torch":
        return False
    if tensor.is_cuda:
        return _state.mode != "interpret"
    if tensor.device.type == "cpu":
        return _state.mode == "interpret" or interpreter.is_interpreting()
    return tensor.device.type == "meta"
