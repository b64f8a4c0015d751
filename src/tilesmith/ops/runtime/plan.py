"""A plan: what is allocated and launched for arguments of one look.

The look of a tensor is all but its numbers: shape, strides, dtype, alignment. An operator's kernels are chosen from the
look alone, so the choice is made once, written down as data, and replayed at every later call. The same data runs in
the interpreter, and compiles for GPUs that this machine does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.hardware.devices import Architecture, devices, for_target
from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.config import Config, ConfigType, replaced
from tilesmith.toolchain import gluon, interpreter
from tilesmith.toolchain.launcher import Grid, Launch

# Persistent kernels share their work among this many times the multiprocessors. Without a GPU there are none to count;
# a small number makes every program take several turns, so that the interpreter walks the loop.
MULTIPROCESSORS_WITHOUT_GPU = 2


Results = Callable[[Sequence[Tensor]], Tensor | tuple[Tensor, ...]]
"""Picks what a plan gives from all of its tensors."""


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor that a plan speaks of: an argument, an output or scratch memory."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    aligned: bool = True
    order: tuple[int, ...] | None = None  # which dimensions of the tensor these are, where not as they come

    def data_ptr(self) -> int:
        """What compilation depends on: whether the address is a multiple of 16."""
        return 0 if self.aligned else 1

    @property
    def element_bytes(self) -> int:
        return self.dtype.itemsize

    def seen_as(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Operand:
        """The same memory from the same address on, with other dimensions."""
        return replace(self, shape=shape, strides=strides, order=None)

    def permuted(self, order: tuple[int, ...]) -> Operand:
        """The same tensor with its dimensions in this order."""
        shape, strides = (tuple(one[dimension] for dimension in order) for one in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides, order=order)

    def describable(self) -> bool:
        """Whether the copy engine of a Hopper GPU can walk this layout, which it wants in units of 16 bytes."""
        *outer, innermost = self.strides
        whole_units = all(stride > 0 and stride * self.element_bytes % 16 == 0 for stride in outer)
        return self.aligned and innermost == 1 and whole_units and 0 not in self.shape and len(outer) < 5

    def descriptor(self, block_shape: Sequence[int]) -> TensorDescriptor:
        """A kernel argument that loads and stores blocks of this shape by the copy engine, zeros beyond the edges."""
        return TensorDescriptor(self, list(self.shape), list(self.strides), list(block_shape))

    def gluon_descriptor(self, block_shape: Sequence[int]) -> Any:
        """The same for a kernel in Gluon."""
        return gluon.described(self, self.shape, self.strides, block_shape)


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch as data: everything that compiling, interpreting or explaining it needs."""

    kernel: Any
    grid: Grid
    arguments: dict[str, object]
    config: Config

    def options(self) -> dict[str, Any]:
        # Fused multiply-add is asked for by name: from Triton 3.10 on it is no longer the default.
        return {"num_warps": self.config.num_warps, "num_stages": self.config.num_stages, "enable_fp_fusion": True}

    def operands(self) -> list[Operand]:
        """Every tensor among the arguments, those behind descriptors included."""
        bases = [one.base if isinstance(one, gluon.DESCRIPTORS) else one for one in self.arguments.values()]
        return [base for base in bases if isinstance(base, Operand)]

    def on(self, tensors: Sequence[Tensor] | Mapping[int, Tensor]) -> dict[str, object]:
        """The arguments with real tensors, found by their slot, in place of the operands."""
        return {name: _real(value, tensors) for name, value in self.arguments.items()}


def _real(value: object, tensors: Sequence[Tensor] | Mapping[int, Tensor]) -> object:
    if isinstance(value, gluon.DESCRIPTORS):
        return replace(value, base=_real(value.base, tensors))
    return tensors[value.slot] if isinstance(value, Operand) else value


@dataclass(frozen=True)
class Choice:
    """A configuration that a plan settled on, and what sizes it holds for."""

    kernels: str
    bucket: str
    config: Config


@dataclass
class Plan:
    """Built by a planner through `empty`, `empty_like`, `choose` and `launch`; then run as often as wanted."""

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
        self._slots = len(self._tensor_places)
        self._prepared: list[Launch] | None = None
        self._memory: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] = []
        self._results: Results | None = None
        slots = iter(range(self._slots))
        self.operands = [
            _look_of(value, next(slots)) if isinstance(value, Tensor) else value for value in self.arguments
        ]
        self.arguments = ()  # a plan outlives the call: it must not keep the call's tensors

    @property
    def multiprocessors(self) -> int:
        return _multiprocessors(self.device, _imagined)

    @property
    def architecture(self) -> Architecture:
        """What a multiprocessor of this GPU, or of the imagined one, holds."""
        return _architecture(self.device, _imagined)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Operand:
        """Memory for an output or for scratch, contiguous."""
        return self._buffer(torch.empty(shape, dtype=dtype, device="meta"))

    def empty_like(self, operand: Operand, dtype: torch.dtype | None = None) -> Operand:
        """Memory laid out as torch.empty_like lays it out for that argument, and seen as that is seen."""
        if operand.order is not None:
            back = tuple(operand.order.index(dimension) for dimension in range(len(operand.order)))
            return self.empty_like(replace(operand.permuted(back), order=None), dtype).permuted(operand.order)
        like = torch.empty_strided(operand.shape, operand.strides, dtype=operand.dtype, device="meta")
        return self._buffer(torch.empty_like(like, dtype=dtype))

    def _buffer(self, look: Tensor) -> Operand:
        buffer = Operand(self._slots, tuple(look.shape), look.stride(), look.dtype)
        self._buffers.append(buffer)
        self._slots += 1
        return buffer

    def choose(self, default: ConfigType, *bucket: object) -> ConfigType:
        """The configuration to launch with: a sweep's, else one tuned here for these sizes, else the default."""
        default = default.for_warps_of(self.architecture.warp_size)
        name = " ".join(str(part).removeprefix("torch.") for part in bucket)
        config = tuning.stored(self.device, self.kernels, name, default) or default
        config = replaced(config, dict(dispatch.state().overrides))
        self.choices.append(Choice(self.kernels, name, config))
        return config

    def launch(self, kernel: Any, grid: Sequence[int], config: Config, **arguments: object) -> None:
        """Put a kernel on the plan. A grid with nothing in it is left out."""
        full = (*grid, *(1,) * (3 - len(grid)))
        if 0 in full:
            return
        constants = {name: value for name, value in config.constants().items() if name in kernel.arg_names}
        self.launches.append(PlannedLaunch(kernel, full, {**arguments, **constants}, config))  # type: ignore[arg-type]

    def run(self, arguments: Sequence[Any]) -> Tensor | tuple[Tensor, ...]:
        """Compute: on the GPU by replaying compiled launches, on the CPU in the interpreter."""
        results = self._results or self._settled()
        tensors: list[Tensor] = [arguments[place] for place in self._tensor_places]
        device = self.device
        for shape, strides, dtype in self._memory:  # empty_strided is the cheapest: 2.3 µs where empty_like takes 3.2
            tensors.append(torch.empty_strided(shape, strides, dtype=dtype, device=device))
        if self._on_gpu and not interpreter.is_interpreting():  # an inspector pretends that there is a GPU
            self._replay(tensors)
        else:
            self._interpret(tensors)
        return results(tensors)

    def _settled(self) -> Results:
        """Write down, once nothing is added any more, what every run needs, in the form that is read fastest."""
        self._memory = [(buffer.shape, buffer.strides, buffer.dtype) for buffer in self._buffers]
        slots = [output.slot for output in self.outputs]
        self._results = itemgetter(*slots) if slots else lambda tensors: ()  # what writes in place gives nothing
        return self._results

    def _replay(self, tensors: list[Tensor]) -> None:
        index = self.device.index
        if torch._C._cuda_getDevice() != index:
            with torch.cuda.device(index):
                self._replay(tensors)
            return
        if self._prepared is None:
            self._prepared = [
                Launch(launch.kernel, launch.grid, launch.arguments, launch.options()) for launch in self.launches
            ]
        addresses = [tensor.data_ptr() for tensor in tensors]
        stream = torch._C._cuda_getCurrentRawStream(index)
        for launch in self._prepared:
            launch(stream, addresses)

    def _interpret(self, tensors: list[Tensor]) -> None:
        for launch in self.launches:
            interpreter.interpret(launch.kernel, launch.grid, launch.on(tensors), options=launch.options())


def _look_of(tensor: Tensor, slot: int) -> Operand:
    aligned = tensor.device.type == "meta" or tensor.data_ptr() % 16 == 0
    return Operand(slot, tuple(tensor.shape), tensor.stride(), tensor.dtype, aligned)


_imagined = "cuda:90"


@contextmanager
def imagining(target: str) -> Iterator[None]:
    """Inside, plans without a GPU are made for this one."""
    global _imagined
    before, _imagined = _imagined, target
    try:
        yield
    finally:
        _imagined = before


@lru_cache
def _multiprocessors(device: torch.device, imagined: str) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    if device.type == "meta":
        known = (one.multiprocessors for one in devices() if one.architecture.target == imagined)
        return next(known, MULTIPROCESSORS_WITHOUT_GPU)
    return MULTIPROCESSORS_WITHOUT_GPU


@lru_cache
def _architecture(device: torch.device, imagined: str) -> Architecture:
    if device.type != "cuda":
        return for_target(imagined)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        target, smallest = f"hip:{properties.gcnArchName.split(':')[0]}", "hip:gfx90a"
    else:
        target, smallest = f"cuda:{properties.major}{properties.minor}", "cuda:89"
    try:
        return for_target(target)
    except ValueError:  # not among the known ones: what fits on the smallest of them fits
        return for_target(smallest)
