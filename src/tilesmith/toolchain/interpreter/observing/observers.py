"""What observers of interpreted kernels see, and the errors that a kernel raises where nobody observes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ctypes import string_at
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilesmith.toolchain.variable import Variable

Program = tuple[int, int, int]
Lanes = NDArray[np.bool_]

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
    mask: Lanes
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
    lanes: Lanes


@dataclass(frozen=True)
class Operation:
    """One operation of one program, on a whole block.

    - `kind`: "load", "store", "atomic", "dot", "reduce", "float", "special" (such as exponentials and roots) or
      "integer". Operations that only reshape, convert or compare are not shown.
    - `inputs`: the numbers of the operations whose results are used, also through operations that are not shown.
    - `elements`: the number of results; of a reduction, of its inputs; of a dot, of multiplications.
    """

    number: int
    kind: str
    name: str
    program: Program
    file: str
    line: int
    shape: tuple[int, ...]
    format: str
    elements: int
    inputs: tuple[int, ...]
    argument: str | None = None
    nan: str = ""  # "made" where a result has a NaN and no input has one, "passed" where both have one


@dataclass(frozen=True)
class Origin:
    """Where an undefined value comes from: "masked" or the cause of a `Doubt`, and the line of the load."""

    cause: str
    file: str
    line: int
    argument: str | None


@dataclass(frozen=True)
class Undefined:
    """The undefined lanes of a block.

    - `harmful`: a sum or an extreme already changed by them, even if the hardware fills such lanes with zeros.
    - `kept`: lanes that zeros leave right, such as a defined number plus an undefined zero.
    - `parts`: the lanes of each origin, where there is more than one.
    """

    lanes: Lanes
    origin: Origin
    harmful: bool = False
    kept: Lanes = field(default_factory=lambda: np.False_)  # type: ignore[arg-type, return-value]  # broadcasts
    parts: tuple[tuple[Origin, Lanes], ...] = ()

    def by_origin(self) -> tuple[tuple[Origin, Lanes], ...]:
        """Return each origin with its lanes."""
        return self.parts or ((self.origin, self.lanes),)


@dataclass(frozen=True)
class Hint:
    """A hint that is false in one program: its name, its place, and the values that contradict it."""

    name: str
    program: Program
    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class Birth:
    """The first operation of a program that makes an infinity or a NaN of finite numbers, and the store it reaches."""

    value: str  # "infinity" or "NaN"
    operation: str
    program: Program
    file: str
    line: int
    stored_at: int = 0


@dataclass(frozen=True)
class Rounding:
    """The error of one operation's result beside float64, relative to the largest number of the block."""

    program: Program
    file: str
    line: int
    format: str
    error: float
    introduced: float  # the error less that of the inputs
    stored: str | None = None  # the argument, where the operation stores


@dataclass(frozen=True)
class Step:
    """One executed statement; the first one of a function is its `def`, which receives the arguments.

    `gone` are variables of a function that has returned; `raised` is the name of an exception.
    """

    program: Program
    function: str
    file: str
    line: int
    last_line: int
    changed: tuple[Variable, ...]
    gone: tuple[str, ...] = ()
    raised: str = ""


class OutOfBounds(Exception):
    """A kernel accesses memory outside its tensor arguments; the access was not performed."""

    def __init__(self, message: str, access: Access, bad_lanes: Lanes) -> None:
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


class EndlessWait(Exception):
    """A program polls memory that only another program changes."""

    def __init__(self, address: int, element_bytes: int, content: bytes) -> None:
        super().__init__(address, element_bytes, content)
        self.address, self.element_bytes, self.content = address, element_bytes, content
        self.is_endless = False

    def __str__(self) -> str:
        if self.is_endless:
            return "this wait never ends: the other programs end or wait too, and none changes what is read here"
        return "programs run one after another, in order"

    def is_over(self) -> bool:
        """Return whether the memory has changed since."""
        return string_at(self.address, self.element_bytes) != self.content


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

    def undefined(self, undefined: Undefined, lanes: Lanes, program: Program) -> None:
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
