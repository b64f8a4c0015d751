"""Memory of an interpreted kernel: bounds of its arguments, observers of its accesses, and out-of-bounds errors."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from tilesmith.toolchain.interpreter.host import tensors_in

if TYPE_CHECKING:
    from tilesmith.toolchain.interpreter.operations import Operation
    from tilesmith.toolchain.interpreter.values.hints import Hint
    from tilesmith.toolchain.interpreter.values.precision import Birth, Rounding
    from tilesmith.toolchain.interpreter.values.undefined import Undefined
    from tilesmith.toolchain.interpreter.values.variables import Step

Program = tuple[int, int, int]

_NOT_USER_CODE = tuple(f"{Path(file).parent}{os.sep}" for file in (triton.__file__, np.__file__, __file__))
MANY_LANES = 1 << 12  # from there on, numpy indexing beats the loop over lanes (8192: 118 against 184 µs)
_NOWHERE = ("<unknown>", 0)
IN_64_BITS = "compute the offset in 64 bits: index.to(tl.int64) * stride"


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of one program: the address of every lane, and the mask.

    - `line`: the innermost line outside Triton.
    - `column`: distinguishes accesses of one line; 0 where Python does not know it.
    - `argument`: the parameter that the pointer came from; None where it was made from an integer.
    - `value`: what is written; bf16 and fp8 are widened to float32.
    - `overflow`: the line where 32-bit arithmetic on the address overflowed. Known only for programs that an observer
      follows, and after the end of a program with an access out of bounds.
    """

    kind: str
    program: Program
    kernel: str
    file: str
    line: int
    addresses: NDArray[np.uint64]
    mask: NDArray[np.bool_]
    element_bytes: int
    value: NDArray[Any] | None = None
    argument: str | None = None
    column: int = 0
    overflow: tuple[str, int] | None = None
    bounded: bool = False  # by a TMA descriptor, which masks elements out of bounds
    masked: bool = False  # the kernel passes a mask
    operation: str = ""  # of an atomic: "add", "xchg", …; "relaxed add" where it orders nothing between programs
    hint: tuple[str, int] | None = None  # the line of a false hint that the address follows from


@dataclass(frozen=True)
class Dot:
    """One `tl.dot` of one program: [m, k] @ [k, n], `batch` times, in Triton's names for the formats.

    `input_precision` applies to single precision only; it is `tf32` where the kernel does not set it. With `of_sum`,
    the kernel has a sum of products there, which Triton compiles to a dot.
    """

    program: Program
    kernel: str
    file: str
    line: int
    batch: int
    m: int
    n: int
    k: int
    operand_format: str
    accumulator_format: str
    input_precision: str
    of_sum: bool = False


class Doubt(NamedTuple):
    """Lanes of a load that must not decide a result: "unwritten", "outside the view" or "outside the tile"."""

    cause: str
    lanes: NDArray[np.bool_]


class OutOfBounds(Exception):
    """A kernel accesses memory outside its tensor arguments; the access was not performed."""

    def __init__(self, message: str, access: Access, bad_lanes: NDArray[np.bool_]) -> None:
        super().__init__(message)
        self.access = access
        self.bad_lanes = bad_lanes

    def __str__(self) -> str:
        place = self.access.overflow
        return super().__str__() + (f": int32 overflow at {place[0]}:{place[1]}, {IN_64_BITS}" if place else "")


class Misuse(Exception):
    """A Gluon kernel accesses shared memory that another partition or an asynchronous copy uses, or nobody wrote."""

    def __init__(self, message: str, program: Program, file: str, line: int) -> None:
        super().__init__(message)
        self.program, self.file, self.line = program, file, line


class Observer:
    """Sees what interpreted kernels do. Override the methods that you need."""

    only_writes = False  # whether stores, atomics and errors are all that it sees, which is fast
    measures_precision = False  # whether followed programs are also computed in float64, which is slow
    stepped: Collection[Program] = ()  # programs whose variables to show after each statement, which is slow

    def launch(self, kernel: Any, grid: Program, arguments: Mapping[str, object]) -> None:
        """Called at the start of a launch: the @triton.jit function, its grid and its arguments by name."""

    def load(self, access: Access) -> Doubt | None:
        """Called before a program loads. May return lanes that must not decide a result, and the reason."""
        return None

    def store(self, access: Access) -> None:
        """Called before a program stores."""

    def atomic(self, access: Access) -> None:
        """Called before an atomic operation of a program."""

    def dot(self, dot: Dot) -> None:
        """Called when a program multiplies two blocks."""

    def follows(self, program: Program) -> bool:
        """Whether to see each operation of this program; that is slow."""
        return False

    def operation(self, operation: Operation) -> None:
        """Called after each operation of a program that this observer follows."""

    def step(self, step: Step) -> bool | None:
        """Called after each statement of the `stepped` programs. False: later steps need no variables (faster)."""

    def undefined(self, undefined: Undefined, lanes: NDArray[np.bool_], program: Program) -> None:
        """Called before a program stores undefined values in these lanes."""

    def false_hint(self, hint: Hint) -> None:
        """Called for a hint to the compiler that the values of a program contradict."""

    def not_finite(self, birth: Birth) -> None:
        """Called before a followed program stores an infinity or a NaN that it made of finite numbers."""

    def rounding(self, rounding: Rounding) -> None:
        """Called for operations of a followed program whose result has an error, if `measures_precision`."""

    def barrier(self, program: Program, certain: bool) -> None:
        """Called when the threads of a program wait for each other; not `certain`: the compiler may need no barrier."""

    def misuse(self, misuse: Misuse) -> None:
        """Called for accesses to shared memory that no wait orders. Raises by default; return to continue."""
        raise misuse

    def out_of_bounds(self, error: OutOfBounds) -> None:
        """Called for an access out of bounds. Raises by default; return to continue with the bad lanes masked."""
        raise error


class ArgumentPointer(tl.pointer_type):  # type: ignore[misc]  # Triton ships no types
    """A pointer type with the argument that it came from. Block operations pass the type on."""

    def __init__(self, element_type: Any, argument: str) -> None:
        super().__init__(element_type)
        self.argument = argument


@dataclass(frozen=True)
class Region:
    """The memory of one tensor argument: its whole storage, since a view's strides may reach all of it."""

    name: str
    start: int
    end: int
    data: int
    element_bytes: int
    elements: int
    contiguous: bool

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Region:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        return cls(
            name, start, start + storage.nbytes(), tensor.data_ptr(), tensor.element_size(), tensor.numel(),
            contiguous=tensor.is_contiguous(),
        )  # fmt: skip

    def array(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the memory as an array."""
        whole: Any = ctypes.c_byte * ((self.end - self.start) // dtype.itemsize * dtype.itemsize)
        return np.frombuffer(whole.from_address(self.start), dtype)

    def contains(self, first: int, last: int) -> bool:
        return self.start <= first and last <= self.end

    def distance(self, address: int) -> int:
        return max(self.start - address, address - self.end + 1, 0)

    def describe(self, address: int) -> str:
        index = (address - self.data) // self.element_bytes
        if self.contiguous:
            count = f"which has {self.elements} element{'' if self.elements == 1 else 's'}"
        else:
            first = (self.start - self.data) // self.element_bytes
            last = (self.end - self.data) // self.element_bytes - 1
            count = f"whose storage holds elements {first} to {last}"
        return f"{self.name}[{index}], {count}"


class Elements(NamedTuple):  # a region as an array, and the elements that an access touches; 0 in lanes that are off
    values: NDArray[Any]
    indices: NDArray[np.intp]


class Memory:
    """The tensors of one launch. Observers see every access; accesses outside these tensors raise an error.

    A pointer must stay in the storage of its own argument; one of unknown origin may access any tensor.
    """

    def __init__(self, kernel: str, arguments: Mapping[str, object], observers: Sequence[Observer]) -> None:
        self.kernel = kernel
        self.observers = observers
        self.regions = {name: Region.of(name, tensor) for name, tensor in tensors_in(arguments)}
        self._others: list[Region] = []
        self.refused: list[OutOfBounds] = []  # accesses of the last program
        self.repeated = 0  # programs that ran again to explain such accesses
        self.doubt: Doubt | None = None  # lanes of the last load that must not decide a result
        self.place: tuple[str, int] | None = None  # file and line of an access that no kernel's frame performs

    @property
    def is_watched(self) -> bool:
        """Whether an observer sees more than what programs write."""
        return any(not observer.only_writes for observer in self.observers)

    def admit(
        self,
        kind: str,
        program: Program,
        pointers: Any,
        mask: NDArray[np.bool_],
        element_bytes: int,
        value: NDArray[Any] | None = None,
        bounded: bool = False,
        masked: bool = False,
        operation: str = "",
    ) -> NDArray[np.bool_]:
        """Return the lanes to perform: the mask without the lanes that are out of bounds."""
        addresses = pointers.data
        active = addresses if mask.all() else addresses[mask]
        own = self.regions.get(getattr(pointers.dtype, "argument", ""))
        within = self._hold(own, active, element_bytes)
        if within and not (self.is_watched if kind == "load" else self.observers):
            return mask
        frame = _kernel_frame(sys._getframe(1))
        file, line = self.place or ((frame.f_code.co_filename, frame.f_lineno) if frame else _NOWHERE)
        overflow = getattr(pointers, "overflow", None)
        access = Access(
            kind, program, self.kernel, file, line, addresses, mask, element_bytes, value, own.name if own else None,
            _column(frame), overflow.place if overflow and overflow.lanes[mask].any() else None, bounded, masked,
            operation, getattr(pointers, "hint", None),
        )  # fmt: skip
        self.doubt = None
        for observer in self.observers:
            self.doubt = getattr(observer, kind)(access) or self.doubt
        return mask if within else self._refuse(access, own)

    def misuse(self, program: Program, file: str, line: int, message: str) -> None:
        """Show the observers a wrong use of shared memory; raise it where there are none."""
        misuse = Misuse(message, program, file, line)
        for observer in self.observers or [Observer()]:
            observer.misuse(misuse)

    def holds(self, pointers: Any, mask: NDArray[np.bool_] | None) -> bool:
        """Return whether all lanes of a mask are inside the memory that the pointers may access."""
        own = self.regions.get(getattr(pointers.dtype, "argument", ""))
        active = pointers.data if mask is None or mask.all() else pointers.data[mask]
        return self._hold(own, active, max(1, pointers.get_element_ty().primitive_bitwidth // 8))

    def elements(self, pointers: Any, lanes: NDArray[np.bool_], dtype: np.dtype[Any]) -> Elements | None:
        """Return where an admitted access of many lanes goes; None where the stock loop over lanes must perform it."""
        own = self.regions.get(getattr(pointers.dtype, "argument", ""))
        if own is None or pointers.data.size < MANY_LANES or own.end - own.start < dtype.itemsize:
            return None
        places = np.where(lanes, pointers.data - np.uint64(own.start), np.uint64(0))
        if int(np.bitwise_or.reduce(places, axis=None)) % dtype.itemsize:
            return None
        shift = np.uint64(dtype.itemsize.bit_length() - 1)
        return Elements(own.array(dtype), (places >> shift).view(np.intp))

    def _hold(self, own: Region | None, active: NDArray[np.uint64], element_bytes: int) -> bool:
        if active.size == 0:
            return True
        first, last = int(active.min()), int(active.max()) + element_bytes
        if own is not None:
            return own.contains(first, last)
        if (
            any(region.contains(first, last) for region in self._reachable())
            or self._lanes_inside(active, element_bytes, self._reachable()).all()
        ):
            return True
        self._others = _live_tensors()
        return bool(self._lanes_inside(active, element_bytes, self._reachable()).all())

    def readable(self, addresses: NDArray[np.uint64], element_bytes: int) -> NDArray[np.bool_]:
        """Return the lanes inside the memory of some argument."""
        return self._lanes_inside(addresses, element_bytes, self.regions.values())

    def _reachable(self) -> list[Region]:
        return [*self.regions.values(), *self._others]

    @staticmethod
    def _lanes_inside(
        addresses: NDArray[np.uint64], element_bytes: int, regions: Iterable[Region]
    ) -> NDArray[np.bool_]:
        inside = np.zeros(addresses.shape, dtype=bool)
        for region in regions:
            if region.end - region.start >= element_bytes:
                inside |= (addresses >= np.uint64(region.start)) & (addresses <= np.uint64(region.end - element_bytes))
        return inside

    def _refuse(self, access: Access, own: Region | None) -> NDArray[np.bool_]:
        inside = self._lanes_inside(access.addresses, access.element_bytes, [own] if own else self._reachable())
        bad = access.mask & ~inside
        error = OutOfBounds(self._message(access, bad, [own] if own else [*self.regions.values()]), access, bad)
        self.refused = [*self.refused, error][:8]  # enough to explain
        for observer in self.observers or [Observer()]:
            observer.out_of_bounds(error)
        allowed: NDArray[np.bool_] = access.mask & inside
        return allowed

    def _message(self, access: Access, bad: NDArray[np.bool_], regions: list[Region]) -> str:
        # A negative address has wrapped to the end of the address space.
        address = int(access.addresses[bad].astype(np.int64).flat[0])
        direction = {"load": "load from", "store": "store to", "atomic": "atomic on"}[access.kind]
        nearest = min(regions, key=lambda region: region.distance(address), default=None)
        place = nearest.describe(address) if nearest else f"address {address:#x}, where no tensor lies"
        return (
            f"{access.kernel} ({access.file}:{access.line}), program {access.program}: {direction} {place}"
            f" ({np.count_nonzero(bad)} of {access.mask.size} lanes out of bounds)"
        )


def _live_tensors() -> list[Region]:
    """Return every tensor in host memory: pointers that a kernel loads from a table of addresses may lead to any."""
    regions = []
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, torch.nn.Parameter) and each.device.type == "cpu":
            with suppress(RuntimeError):  # sparse and wrapped tensors have no memory of their own
                regions.append(Region.of("", each))
    return regions


@cache
def is_user_code(file: str) -> bool:
    """Whether a file belongs to the user, not to Triton, NumPy or the interpreter."""
    return not file.startswith(_NOT_USER_CODE)


def kernel_position(frame: FrameType | None) -> tuple[str, int]:
    """Return file and line of the innermost frame in the user's source."""
    found = _kernel_frame(frame)
    return (found.f_code.co_filename, found.f_lineno) if found else _NOWHERE


def _kernel_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _column(frame: FrameType | None) -> int:
    """Return the column of the call that a frame executes; 0 before Python 3.11."""
    if frame is None or not hasattr(frame.f_code, "co_positions"):
        return 0
    return _columns(frame.f_code)[frame.f_lasti // 2]


@lru_cache
def _columns(code: CodeType) -> list[int]:
    positions: Any = code
    return [column or 0 for _, _, column, _ in positions.co_positions()]
