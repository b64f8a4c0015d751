"""What an inspection finds, as plain data: the terminal, the JSON, the page and tests all read these fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Program = tuple[int, int, int]
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """Something to know or to mend. `cost_bytes` are moved for nothing; `cost_us` is what that takes, predicted."""

    kind: str
    severity: Severity
    message: str
    advice: str
    file: str
    line: int | None
    code: str = ""
    program: Program | None = None
    target: str | None = None
    cost_bytes: int = 0
    cost_us: float | None = None


@dataclass(frozen=True)
class AccessFacts:
    """The loads, stores or atomics of one place in the source.

    Totals are over the whole grid. Requests, sectors and efficiency are None where the compiler's layout is not known.
    A sector is `Inspection.sector_bytes` long. `accesses_per_element` is how often the kernel does this kind of access
    to each element of the argument, all of its lines together; `repeats` is how often this line alone does.
    `again_in_program` is the share of a program's elements that the same program had accessed before.
    """

    kind: str  # "load", "store" or "atomic"
    file: str
    line: int
    column: int
    argument: str | None
    element_bytes: int
    shape: tuple[int, ...]
    executions: int
    bytes: int
    unique_bytes: int
    accesses_per_element: float
    repeats: float
    again_in_program: float
    masked_fraction: float
    requests: int | None
    sectors_per_request: float | None
    ideal_sectors_per_request: float | None
    efficiency: float | None
    vector_bytes: int | None
    pipelined: bool
    bulk: bool
    values: tuple[float, float] | None  # smallest and largest of those seen


@dataclass(frozen=True)
class ArgumentFacts:
    """One argument of a launch. Shapes, strides and traffic are those of tensors, `value` that of everything else."""

    name: str
    constant: bool
    value: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    alignment: int = 0  # the largest power of two, up to 256, that divides the address
    loads_per_element: float = 0.0
    loads_per_element_in_program: float = 0.0
    stores_per_element: float = 0.0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    unique_loaded_bytes: int = 0
    unique_stored_bytes: int = 0

    @property
    def is_tensor(self) -> bool:
        return self.dtype is not None


@dataclass(frozen=True)
class SharedAccess:
    """Instructions of one source line that touch shared memory. A wavefront is one turn of its 32 banks."""

    kind: str  # "load" or "store"
    file: str
    line: int
    instructions: int
    wavefronts: int
    ideal_wavefronts: int


@dataclass(frozen=True)
class TargetFacts:
    """What the compiler made of the kernel for one target, and what that allows. `error` is why there is nothing."""

    target: str
    device: str | None  # whose datasheet the prediction uses
    error: str | None = None
    num_warps: int = 0
    num_stages: int | None = None
    registers: int = 0
    scalar_registers: int | None = None
    spill_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    tensor_cores: bool = False
    async_copies: bool = False
    barriers: int = 0
    occupancy: float | None = None
    blocks_per_multiprocessor: int | None = None
    limited_by: str | None = None
    waves: float | None = None
    tail: float | None = None  # the share of the last wave's places that stay empty
    predicted_floor_us: float | None = None
    predicted_memory_us: float | None = None
    predicted_compute_us: float | None = None
    predicted_rates: Mapping[str, float] = field(default_factory=dict)  # TFLOP/s that the latter is made of, by share
    vector_bytes: Mapping[int, int] = field(default_factory=dict)  # by source line, the widest
    shared_accesses: tuple[SharedAccess, ...] = ()
    assembly: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict, repr=False)
    """Each text by name, as lines with the source line they came from (0: none)."""


@dataclass(frozen=True)
class Operation:
    """One step of a program. `inputs` are the indices of the operations whose results it uses."""

    kind: str  # "load", "store", "atomic", "dot", "reduce", "float", "special" or "integer"
    name: str
    line: int
    shape: tuple[int, ...]
    dtype: str
    elements: int
    inputs: tuple[int, ...]
    argument: str | None


@dataclass(frozen=True)
class Request:
    """What one warp asks for with one instruction: for each active lane its number and its elements' offsets."""

    warp: int
    instruction: int
    lanes: tuple[tuple[int, tuple[int, ...]], ...]
    sectors: int
    ideal_sectors: int


@dataclass(frozen=True)
class ProgramAccess:
    """One execution of one access by one program. Offsets count elements from the argument's first.

    `runs` are (first offset, how many in a row), in the order of the offsets; `cut` says that there are more.
    """

    access: int  # index into Kernel.accesses
    active: int
    masked: int
    runs: tuple[tuple[int, int], ...]
    cut: bool
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Tile:
    """The smallest box around what a program stores into an argument: per dimension first and one past the last."""

    argument: str
    box: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ProgramFacts:
    """A program that was traced: where it stores. `accesses` and `operations` are kept of some programs only."""

    program: Program
    tiles: tuple[Tile, ...]
    accesses: tuple[ProgramAccess, ...] = ()
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class LineCost:
    """What one source line costs over the whole grid; `share` is its part of all bytes or flops, whichever binds."""

    file: str
    line: int
    code: str
    bytes: int
    sectors: int
    flops: float
    share: float


@dataclass(frozen=True)
class Kernel:
    """One kernel on one grid with arguments of one look, launched once or often."""

    name: str
    file: str
    line: int
    source: str
    launches: int
    grid: Program
    programs: int
    programs_traced: int
    sampled: str  # how those were chosen
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    arguments: tuple[ArgumentFacts, ...]
    accesses: tuple[AccessFacts, ...]
    flops: float
    flops_by_kind: Mapping[str, float]
    arithmetic_intensity: float | None
    bytes: int
    unique_bytes: int
    bound: Literal["memory", "compute"]
    targets: Mapping[str, TargetFacts]
    lines: tuple[LineCost, ...]
    program_facts: tuple[ProgramFacts, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    measured_us: float | None = None
    measured_note: str | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


@dataclass(frozen=True)
class Ending:
    """How a script ended: by itself with a status, by an exception of its own, by a signal, or by a limit of ours."""

    kind: Literal["finished", "exception", "signal", "timeout", "memory"]
    status: int = 0
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Inspection:
    """Everything found. `device` is the GPU that was there, or the one that was spoken of instead."""

    tilesmith: str
    torch: str
    triton: str
    script: str
    arguments: tuple[str, ...]
    device: str
    has_gpu: bool
    sector_bytes: int
    kernels: tuple[Kernel, ...]
    ending: Ending = Ending("finished")
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for kernel in self.kernels for finding in kernel.findings)

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def kernel(self, name: str) -> Kernel:
        """The first kernel of this name."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(
            f"no kernel {name!r} was launched; there were {', '.join(k.name for k in self.kernels) or 'none'}"
        )

    def _repr_html_(self) -> str:
        from tilesmith.lab.inspect.output.page import notebook_html

        return notebook_html(self)
