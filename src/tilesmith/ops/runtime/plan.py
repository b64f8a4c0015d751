"""The plan of a call as data: buffers to allocate and kernels to launch.

A planner sees the shape, strides, dtype and alignment of each tensor, not its values. So one plan serves all calls with
the same look. The same plan runs in the interpreter, and compiles for GPUs that this machine does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.hardware.devices import Architecture, devices, for_target
from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.config import Config, ConfigType, replaced
from tilesmith.toolchain import gluon, interpreter
from tilesmith.toolchain.launcher import Grid, Launch, Start, is_watched, scratch_memory

# The grid of a persistent kernel follows from the number of multiprocessors. On a CPU this small number stands for it:
# every program then takes several tiles, so the interpreter runs the loop.
MULTIPROCESSORS_WITHOUT_GPU = 2


def _empty_strided_on_gpu(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


# Inductor's own allocation, on the current device: 1.2 µs on a CPU's twin of it, where empty_strided takes 2.5. It is
# private, so a release of PyTorch may be without it.
_empty_on_gpu = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided_on_gpu)

Replay = Callable[..., Tensor | tuple[Tensor, ...]]
"""Computes a plan, from its arguments and the functions that start its launches."""


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor of a plan: an argument, an output or scratch memory."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    aligned: bool = True
    order: tuple[int, ...] | None = None  # the tensor's dimension behind each of these, where permuted

    def data_ptr(self) -> int:
        """Return an address with the alignment that compilation depends on: a multiple of 16 or not."""
        return 0 if self.aligned else 1

    @property
    def element_bytes(self) -> int:
        return self.dtype.itemsize

    def seen_as(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Operand:
        """Return the same memory from the same address on, with other dimensions."""
        return replace(self, shape=shape, strides=strides, order=None)

    def permuted(self, order: tuple[int, ...]) -> Operand:
        """Return the same tensor with its dimensions in this order."""
        shape, strides = (tuple(one[dimension] for dimension in order) for one in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides, order=order)

    def describable(self) -> bool:
        """Whether TMA can load this layout: at most five dimensions, strides and address in multiples of 16 bytes."""
        *outer, innermost = self.strides
        whole_units = all(stride > 0 and stride * self.element_bytes % 16 == 0 for stride in outer)
        return self.aligned and innermost == 1 and whole_units and 0 not in self.shape and len(outer) < 5

    def descriptor(self, block_shape: Sequence[int]) -> TensorDescriptor:
        """Return a kernel argument that loads and stores blocks of this shape by TMA, with zeros beyond the edges."""
        return TensorDescriptor(self, list(self.shape), list(self.strides), list(block_shape))

    def gluon_descriptor(self, block_shape: Sequence[int]) -> Any:
        """Return the TMA descriptor of a Gluon kernel for blocks of this shape."""
        return gluon.described(self, self.shape, self.strides, block_shape)


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch as data, enough to compile it, interpret it or explain it."""

    kernel: Any
    grid: Grid
    arguments: dict[str, object]
    config: Config

    def options(self) -> dict[str, Any]:
        # Triton 3.10 no longer fuses multiply and add by default.
        options = {"num_warps": self.config.num_warps, "num_stages": self.config.num_stages, "enable_fp_fusion": True}
        if self.arguments.get("OVERLAPS"):  # see ops/device/overlapped.py
            options["launch_pdl"] = True
        registers = self.config.registers_at_launch
        return options if registers is None else {**options, "maxnreg": registers}

    def operands(self) -> list[Operand]:
        """Return every tensor among the arguments, including those behind descriptors."""
        bases = [one.base if isinstance(one, gluon.DESCRIPTORS) else one for one in self.arguments.values()]
        return [base for base in bases if isinstance(base, Operand)]

    def on(self, tensors: Sequence[Tensor] | Mapping[int, Tensor]) -> dict[str, object]:
        """Return the arguments with real tensors, found by slot, in place of the operands."""
        return {name: _real(value, tensors) for name, value in self.arguments.items()}


def _in_double_precision(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments with numbers as constants: Triton passes a number as float32, but keeps all its digits in a
    constant. float64 is for checking gradients, where compiling again for another number does not matter.
    """
    return {name: tl.constexpr(value) if isinstance(value, float) else value for name, value in arguments.items()}


def _real(value: object, tensors: Sequence[Tensor] | Mapping[int, Tensor]) -> object:
    if isinstance(value, gluon.DESCRIPTORS):
        return replace(value, base=_real(value.base, tensors))
    return tensors[value.slot] if isinstance(value, Operand) else value


@dataclass(frozen=True)
class Choice:
    """A configuration that a plan chose, and the bucket of sizes that it is chosen for."""

    kernels: str
    bucket: str
    config: Config


@dataclass
class Plan:
    """Buffers and launches as data. Planners call `empty`, `empty_like`, `choose` and `launch`; `run` replays them."""

    kernels: str
    device: torch.device
    arguments: Sequence[object]
    launches: list[PlannedLaunch] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    outputs: tuple[Operand, ...] = ()

    def __post_init__(self) -> None:
        self._tensor_places = [place for place, value in enumerate(self.arguments) if isinstance(value, Tensor)]
        self._buffers: list[Operand] = []
        self._on_gpu = self.device.type == "cuda"
        self._index = self.device.index
        self._slots = len(self._tensor_places)
        self._replay: Replay | None = None
        self._starts: list[Start] = []
        self._watched_starts: list[Start] = []
        slots = iter(range(self._slots))
        self.operands = [
            _operand_of(value, next(slots)) if isinstance(value, Tensor) else value for value in self.arguments
        ]
        self.arguments = ()  # a plan outlives the call, so it must not keep the call's tensors

    @property
    def multiprocessors(self) -> int:
        return _multiprocessors(self.device, _planned_target)

    @property
    def architecture(self) -> Architecture:
        """Return the limits of one multiprocessor of this GPU, or of the GPU that `planning_for` names."""
        return _architecture(self.device, _planned_target)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Operand:
        """Return new contiguous memory for an output or for scratch."""
        return self._buffer(torch.empty(shape, dtype=dtype, device="meta"))

    def empty_like(self, operand: Operand, dtype: torch.dtype | None = None) -> Operand:
        """Return new memory with the strides that torch.empty_like gives, its dimensions in the operand's order."""
        if operand.order is not None:
            back = tuple(operand.order.index(dimension) for dimension in range(len(operand.order)))
            return self.empty_like(replace(operand.permuted(back), order=None), dtype).permuted(operand.order)
        like = torch.empty_strided(operand.shape, operand.strides, dtype=operand.dtype, device="meta")
        return self._buffer(torch.empty_like(like, dtype=dtype))

    def _buffer(self, meta: Tensor) -> Operand:
        buffer = Operand(self._slots, tuple(meta.shape), meta.stride(), meta.dtype)
        self._buffers.append(buffer)
        self._slots += 1
        return buffer

    def choose(self, default: ConfigType, *bucket: object) -> ConfigType:
        """Return the configuration to launch with: a sweep's, else one tuned for these sizes, else the default."""
        default = default.for_warps_of(self.architecture.warp_size)
        name = " ".join(str(part).removeprefix("torch.") for part in bucket)
        config = tuning.stored(self.device, self.kernels, name, default) or default
        config = replaced(config, dict(dispatch.state().overrides))
        choice = Choice(self.kernels, name, config)
        if choice not in self.choices:  # a form chooses to say whether it suits, and again to plan
            self.choices.append(choice)
        return config

    def launch(self, kernel: Any, grid: Sequence[int], config: Config, **arguments: object) -> None:
        """Put a launch on the plan, unless its grid is empty."""
        full = (*grid, *(1,) * (3 - len(grid)))
        if 0 in full:
            return
        constants = {name: value for name, value in config.constants().items() if name in kernel.arg_names}
        launch = PlannedLaunch(kernel, full, {**arguments, **constants}, config)  # type: ignore[arg-type]
        if any(operand.dtype == torch.float64 for operand in launch.operands()):
            launch = replace(launch, arguments=_in_double_precision(launch.arguments))
        self.launches.append(launch)

    def run(self, arguments: Sequence[Any]) -> Tensor | tuple[Tensor, ...]:
        """Compute: replay compiled launches on a GPU, interpret them on a CPU."""
        if not self._on_gpu or interpreter.is_interpreting():  # `inspect` interprets tensors that claim to be on a GPU
            tensors: list[Tensor] = [arguments[place] for place in self._tensor_places]
            for one in self._buffers:
                tensors.append(torch.empty_strided(one.shape, one.strides, dtype=one.dtype, device=self.device))
            self._interpret(tensors)
            results = tuple(tensors[output.slot] for output in self.outputs)
            return results[0] if len(results) == 1 else results
        if torch._C._cuda_getDevice() != self._index:
            with torch.cuda.device(self._index):
                return self.run(arguments)
        replay = self._replay or self._compile()
        return replay(arguments, *(self._watched_starts if is_watched() else self._starts))

    def _compile(self) -> Replay:
        """Compile the kernels, and return the function that allocates and launches. Called once, at the first run."""
        launches = [Launch(one.kernel, one.grid, one.arguments, one.options()) for one in self.launches]
        self._starts = [launch.start for launch in launches]
        self._watched_starts = [launch.start_watched for launch in launches]
        self._replay = self._written_out()
        return self._replay

    def _written_out(self) -> Replay:
        """Return the function that allocates the buffers, starts the launches, and returns the outputs.

        It is written for this plan, since loops take 1.5 µs more. With one argument, buffer and launch:

            def replay(arguments, start0):
                tensor0 = arguments[0]
                tensor1 = empty((4, 64), (64, 1), float32)
                stream, addresses = stream_of(0), (tensor0.data_ptr(), tensor1.data_ptr(),)
                start0(stream, addresses)
                return tensor1
        """
        names: dict[str, Any] = {"empty": _empty_on_gpu, "stream_of": torch._C._cuda_getCurrentRawStream}
        starts = [f"start{number}" for number in range(len(self.launches))]
        lines = [f"def replay({', '.join(['arguments', *starts])}):"]
        lines += [f"tensor{slot} = arguments[{place}]" for slot, place in enumerate(self._tensor_places)]
        for one in self._buffers:
            dtype = str(one.dtype).removeprefix("torch.")
            names[dtype] = one.dtype
            lines.append(f"tensor{one.slot} = empty({one.shape}, {one.strides}, {dtype})")
        addresses = "".join(f"tensor{slot}.data_ptr()," for slot in range(self._slots))
        lines.append(f"stream, addresses = stream_of({self._index}), ({addresses})")
        lines += [f"{start}(stream, addresses)" for start in starts]
        lines.append(f"return {', '.join(f'tensor{output.slot}' for output in self.outputs) or '()'}")
        exec("\n    ".join(lines), names)
        replay: Replay = names["replay"]
        return replay

    def _interpret(self, tensors: list[Tensor]) -> None:
        with scratch_memory():
            for launch in self.launches:
                interpreter.interpret(launch.kernel, launch.grid, launch.on(tensors), options=launch.options())


def _operand_of(tensor: Tensor, slot: int) -> Operand:
    aligned = tensor.device.type == "meta" or tensor.data_ptr() % 16 == 0
    return Operand(slot, tuple(tensor.shape), tensor.stride(), tensor.dtype, aligned)


_planned_target = "cuda:90"


@contextmanager
def planning_for(target: str) -> Iterator[None]:
    """Make plans for this GPU inside the context, where tensors are not on a GPU."""
    global _planned_target
    before, _planned_target = _planned_target, target
    try:
        yield
    finally:
        _planned_target = before


@lru_cache
def _multiprocessors(device: torch.device, target: str) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    if device.type == "meta":
        known = (one.multiprocessors for one in devices() if one.architecture.target == target)
        return next(known, MULTIPROCESSORS_WITHOUT_GPU)
    return MULTIPROCESSORS_WITHOUT_GPU


@lru_cache
def _architecture(device: torch.device, target: str) -> Architecture:
    if device.type != "cuda":
        return for_target(target)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        target, smallest = f"hip:{properties.gcnArchName.split(':')[0]}", "hip:gfx90a"
    else:
        target, smallest = f"cuda:{properties.major}{properties.minor}", "cuda:89"
    try:
        return for_target(target)
    except ValueError:  # an unknown GPU: assume the smallest of the known ones
        return for_target(smallest)
