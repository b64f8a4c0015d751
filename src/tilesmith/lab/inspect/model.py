"""The results of an inspection as plain data. The terminal, the JSON, the page and tests read these fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tilesmith.toolchain.variable import Variable

Program = tuple[int, int, int]
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One message with advice. `cost_bytes` are moved needlessly; `cost_us` is their predicted time."""

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
    """The loads, stores or atomics at one position in the source.

    Totals cover the whole grid. Requests, sectors and efficiency are None where the compiler's layout is unknown. A
    sector has `Inspection.sector_bytes` bytes. `accesses_per_element` counts how often the kernel does this kind of
    access to each element of the argument, over all lines; `repeats` counts this line only. `again_in_program` is the
    share of elements that the same program accessed before.
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
    values: tuple[float, float] | None  # the smallest and the largest value seen
    touched_bytes: int = 0  # of the sectors that are touched, once for each execution


@dataclass(frozen=True)
class ArgumentFacts:
    """One argument of a launch. Tensors have shapes, strides and traffic; all other arguments have a `value`."""

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
    """The shared-memory instructions of one source line. A wavefront is one pass over the 32 banks."""

    kind: str  # "load" or "store"
    file: str
    line: int
    instructions: int
    wavefronts: int
    ideal_wavefronts: int


@dataclass(frozen=True)
class TargetFacts:
    """The compiled kernel for one target, its occupancy and predicted time. `error` says why compilation failed."""

    target: str
    device: str | None  # the device whose datasheet the prediction uses
    error: str | None = None
    num_warps: int = 0
    num_stages: int | None = None
    registers: int = 0
    scalar_registers: int | None = None
    spill_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    scratch_bytes: int = 0  # of global memory, which the launch allocates
    tensor_cores: bool = False
    async_copies: bool = False
    barriers: int = 0
    occupancy: float | None = None
    blocks_per_multiprocessor: int | None = None
    limited_by: str | None = None
    waves: float | None = None
    tail: float | None = None  # the idle share of the last wave
    predicted_floor_us: float | None = None
    predicted_memory_us: float | None = None
    predicted_compute_us: float | None = None
    predicted_us: float | None = None  # the time that a launch is expected to take
    predicted_limit: str | None = None  # what sets it: memory, L2, latency, a pipe, …
    predicted_rates: Mapping[str, float] = field(default_factory=dict)  # TFLOP/s by name, longest time first
    vector_bytes: Mapping[int, int] = field(default_factory=dict)  # the widest access by source line
    shared_accesses: tuple[SharedAccess, ...] = ()
    assembly: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict, repr=False)
    """The compiler's texts by name: (source line or 0, text) for each line."""


@dataclass(frozen=True)
class Operation:
    """One operation of a program. `inputs` are the indices of the operations whose results it uses."""

    kind: str  # "load", "store", "atomic", "dot", "reduce", "float", "special" or "integer"
    name: str
    line: int
    shape: tuple[int, ...]
    dtype: str
    elements: int
    inputs: tuple[int, ...]
    argument: str | None


@dataclass(frozen=True)
class ProgramStep:
    """One executed statement: the accesses it made, the variables it changed, and those that no later step reads."""

    function: str
    file: str
    line: int
    code: str
    changed: tuple[Variable, ...]
    accesses: tuple[tuple[str, str, int, int], ...]  # kind, argument, active lanes, all lanes
    dead: tuple[str, ...] = ()  # from this step on
    raised: str = ""


@dataclass(frozen=True)
class Request:
    """One memory instruction of one warp. `lanes` has each active lane's number and its elements' offsets."""

    warp: int
    instruction: int
    lanes: tuple[tuple[int, tuple[int, ...]], ...]
    sectors: int
    ideal_sectors: int


@dataclass(frozen=True)
class ProgramAccess:
    """One execution of one access by one program. Offsets count elements from the start of the argument.

    `runs` are (first offset, length), sorted; `cut` says that some runs are left out.
    """

    access: int  # index into Kernel.accesses
    active: int
    masked: int
    runs: tuple[tuple[int, int], ...]
    cut: bool
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Tile:
    """The bounding box of a program's stores to an argument: (first, one past the last) index per dimension."""

    argument: str
    box: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ProgramFacts:
    """A traced program and its stored tiles. Only a few programs keep `accesses`, `operations` and `steps`."""

    program: Program
    tiles: tuple[Tile, ...]
    accesses: tuple[ProgramAccess, ...] = ()
    operations: tuple[Operation, ...] = ()
    steps: tuple[ProgramStep, ...] = ()
    steps_in_all: int = 0  # with those that are not kept


@dataclass(frozen=True)
class LineCost:
    """The cost of one source line over the whole grid. `share` is its part of all bytes (memory-bound) or flops."""

    file: str
    line: int
    code: str
    bytes: int
    sectors: int
    flops: float
    share: float


@dataclass(frozen=True)
class LineError:
    """The error of one source line beside float64, in ulp of its format, relative to the block's largest number."""

    file: str
    line: int
    code: str
    format: str
    ulp: float  # the worst error of a result
    introduced_ulp: float  # what the line adds to the error of its inputs, over all its operations


@dataclass(frozen=True)
class ConfigurationFacts:
    """One configuration of an autotuner on the first target. `cannot_win` is the reason why it cannot be the fastest.

    `predicted_us` counts whole programs on the busiest multiprocessor; `spill_us` is the time that spilled registers
    take to local memory.
    """

    number: int
    values: Mapping[str, Any]
    programs: int
    facts: TargetFacts
    chosen: bool = False
    predicted_us: float | None = None
    spill_us: float = 0.0
    measured_us: float | None = None
    cannot_win: str | None = None


@dataclass(frozen=True)
class Kernel:
    """One kernel with one grid and one signature of arguments, launched once or several times."""

    name: str
    file: str
    line: int
    source: str
    launches: int
    grid: Program
    programs: int
    programs_traced: int
    sampled: str  # which programs were traced, in words
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
    precision: tuple[LineError, ...] = ()  # only where it was asked for
    configurations: tuple[ConfigurationFacts, ...] = ()  # of an autotuner, with --config all
    is_tuned: bool = False  # whether an autotuner launched it

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


@dataclass(frozen=True)
class Ending:
    """How a script ended: with a status, by an exception, by a signal, or by exceeding a limit."""

    kind: Literal["finished", "exception", "signal", "timeout", "memory"]
    status: int = 0
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Inspection:
    """All results. `device` is the GPU of this machine, or the GPU that the script was told it has."""

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
        """Return the first kernel with this name. Raises KeyError."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(
            f"no kernel {name!r} was launched; launched: {', '.join(one.name for one in self.kernels) or 'none'}"
        )
