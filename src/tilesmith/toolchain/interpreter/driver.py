"""A driver that pretends to have a GPU, for programs that ask Triton about theirs.

Also stand-ins for compiled kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from tilesmith.hardware.devices import Architecture
from tilesmith.toolchain.benchmarks import benchmarks_cut_short, run_once
from tilesmith.toolchain.compiler import Binary, Target


class StandInDriver(DriverBase):  # type: ignore[misc]  # Triton ships no types
    """Answers like Triton's driver of a GPU, without a GPU."""

    def __init__(self, architecture: Architecture, multiprocessors: int) -> None:
        target = Target.parse(architecture.target)
        self._target = GPUTarget(target.backend, target.arch, target.warp_size)
        properties = {
            "max_shared_mem": architecture.shared_bytes - architecture.reserved_shared_bytes,
            "max_num_regs": architecture.registers,
            "multiprocessor_count": multiprocessors,
            "warpSize": architecture.warp_size,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
            "arch": str(target.arch),
        }
        self.utils = SimpleNamespace(get_device_properties=lambda device=0: dict(properties))

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return torch.cuda.get_device_capability()

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., Any]:
        return run_once

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(0)

    def clear_cache(self, cache: torch.Tensor) -> None:
        pass


@contextmanager
def standing_in(architecture: Architecture, multiprocessors: int) -> Iterator[None]:
    """Give Triton a driver that reports a GPU of this architecture, inside the context."""
    before = driver._active
    driver.set_active(StandInDriver(architecture, multiprocessors))
    try:
        with benchmarks_cut_short():
            yield
    finally:
        driver._active = before


class CompiledStandIn:
    """The result of a launch or a warm-up: a program may read registers and texts, and launch it again."""

    def __init__(
        self,
        kernel: Any,
        arguments: Mapping[str, Any],
        compiled: Callable[[], Binary],
        launch: Callable[[Sequence[int], dict[str, Any]], Any],
    ) -> None:
        self._kernel = kernel
        self._arguments = dict(arguments)
        self._compile = compiled
        self._launch = launch
        self.name = kernel.__name__

    @cached_property
    def _binary(self) -> Binary:
        return self._compile()

    @property
    def asm(self) -> Mapping[str, str]:
        return self._binary.assembly

    @property
    def n_regs(self) -> int:
        return self._binary.registers

    @property
    def n_spills(self) -> int:
        return self._binary.spill_bytes // 4

    @property
    def n_max_threads(self) -> int:
        return 1024

    @property
    def metadata(self) -> SimpleNamespace:
        binary = self._binary
        return SimpleNamespace(name=self.name, shared=binary.shared_bytes, num_warps=binary.num_warps)

    def _init_handles(self) -> None:
        """Do nothing: a program calls this to fill in the properties above."""

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., Any]:
        names = list(self._kernel.arg_names)
        runtime = [one.name for one in self._kernel.params if not one.is_constexpr]

        def run(*arguments: Any, stream: Any = None) -> Any:
            given = names if len(arguments) > len(runtime) else runtime
            return self._launch(grid, {**self._arguments, **dict(zip(given, arguments, strict=False))})

        return run


def is_only_a_type(value: Any) -> bool:
    """Whether a warm-up passes a dtype in place of a tensor."""
    return isinstance(value, MockTensor)


def source_of(kernel: Any) -> tuple[str, int, str]:
    """Return file, first line and text of a @triton.jit function, including decorators."""
    lines, first = inspect.getsourcelines(kernel.fn)
    return kernel.fn.__code__.co_filename, first, "".join(lines)
