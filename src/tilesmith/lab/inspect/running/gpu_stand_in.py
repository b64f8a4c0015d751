"""Stand-ins for `torch.cuda` and `torch.accelerator` on a machine without a GPU.

Questions about the device are answered from a datasheet. Functions that wait for the GPU return at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from math import nan
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tilesmith.hardware.devices import Device
from tilesmith.lab.inspect.running.cuda_graphs import Graph, captured, is_capturing
from tilesmith.toolchain.interpreter.driver import standing_in

_GIGABYTE = 1 << 30
_FREE_AND_TOTAL_BYTES = (64 * _GIGABYTE, 80 * _GIGABYTE)


class Event:
    """An event that records nothing; the time between two events is NaN."""

    def __init__(self, *unused: Any, **options: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return nan


class Stream:
    """A stream without order: every launch runs at once."""

    cuda_stream = stream_id = device_index = priority = 0
    device = torch.device("cuda", 0)

    def __init__(self, *unused: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return event or Event()


_new_generator: Any = torch.Generator.__new__


class Generator(torch.Generator):
    """A CPU generator, whichever device the program asks for."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return _new_generator(cls, "cpu")  # type: ignore[no-any-return]


class DefaultGenerator:
    """The generator of the pretended GPU, in `torch.cuda.default_generators`: torch's own, which is that of the CPU.

    Its state is 16 bytes, a seed and an offset, as kernels with Philox read them. The offset numbers the states.
    """

    device = torch.device("cuda", 0)

    def __init__(self) -> None:
        self._offset = 0
        self._states: dict[tuple[int, int], torch.Tensor] = {}

    def manual_seed(self, seed: int) -> DefaultGenerator:
        torch.default_generator.manual_seed(seed)
        self._offset = 0
        return self

    def seed(self) -> int:
        self._offset = 0
        return torch.default_generator.seed()

    def initial_seed(self) -> int:
        return torch.default_generator.initial_seed()

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        self._offset = offset

    def get_state(self) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            seed, state = self.initial_seed() % (1 << 63), torch.default_generator.get_state()
            while not torch.equal(self._states.setdefault((seed, self._offset), state), state):
                self._offset += 4  # numbers of one call of Philox
            return torch.tensor([seed, self._offset]).view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        with torch._C.DisableTorchFunction():
            seed, offset = state.view(torch.int64).tolist()
            self.manual_seed(seed)
            if (seed, offset) in self._states:
                torch.default_generator.set_state(self._states[seed, offset])
            self._offset = offset


class DeviceContext(nullcontext[None]):
    """`torch.cuda.device`: the only device stays current."""

    idx = 0


@contextmanager
def gpu_stand_in(device: Device, note: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Make torch and Triton answer as if this machine had this device. `note` receives what the user should know."""
    with ExitStack() as changes:
        for module, answers in _answers(device):
            for name, value in answers.items():
                if hasattr(module, name):  # PyTorch releases differ in a few names
                    changes.enter_context(patch.object(module, name, value))
        if device.architecture.target.startswith("cuda"):
            changes.enter_context(patch.object(torch.version, "cuda", torch.version.cuda or "13.0"))
        changes.enter_context(patch.object(torch, "compile", partial(_not_compiled, note)))
        changes.enter_context(standing_in(device.architecture, device.multiprocessors))
        yield


def _not_compiled(note: Callable[[str], None], model: Any = None, **options: Any) -> Any:
    """Stand in for `torch.compile`, which does not change the program's own kernels."""
    note("torch.compile left its functions as they are, so no kernels of Inductor are seen")
    return model if model is not None else lambda function: function


def _answers(device: Device) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each module with the replacements of its attributes."""
    yield torch, {"Generator": Generator, "Event": Event, "Stream": Stream}
    # A data loader pins memory in its own thread, where the tensor tracker sees nothing.
    yield torch.Tensor, {"pin_memory": lambda tensor, device=None: tensor, "record_stream": _returning(None)}
    answers = _torch_cuda(device)
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs):
        yield module, answers
    yield torch.cuda.nvtx, {"_nvtx": _Nothing()}
    yield torch.cuda.profiler, {"start": _returning(None), "stop": _returning(None)}
    yield torch.autograd.profiler, {"emit_nvtx": _returning(nullcontext())}
    yield torch.autograd.profiler.profile, {"__init__": _profile_host}
    yield torch.accelerator, _torch_accelerator()


def _torch_cuda(device: Device) -> dict[str, Any]:
    stream = Stream()
    return {
        "is_available": _returning(True),
        "is_initialized": _returning(True),
        "init": _returning(None),
        "_lazy_init": _returning(None),
        "device_count": _returning(1),
        "current_device": _returning(0),
        "set_device": _returning(None),
        "device": DeviceContext,
        "device_of": DeviceContext,
        "can_device_access_peer": _returning(False),
        "get_device_name": _returning(device.reported_as[0]),
        "get_device_capability": _returning(_capability(device)),
        "get_device_properties": _returning(_properties(device)),
        "get_arch_list": _returning([f"sm_{device.architecture.target.partition(':')[2]}"]),
        "is_bf16_supported": _returning(True),
        "synchronize": _returning(None),
        "Event": Event,
        "Stream": Stream,
        "stream": lambda one: nullcontext(one),
        "current_stream": _returning(stream),
        "default_stream": _returning(stream),
        "set_stream": _returning(None),
        "ExternalStream": Stream,
        "CUDAGraph": Graph,
        "graph_pool_handle": _returning((0, 0)),
        "graph": captured,
        "make_graphed_callables": lambda callables, *unused, **options: callables,
        "is_current_stream_capturing": is_capturing,
        "ipc_collect": _returning(None),
        "cudart": _Nothing,
        "check_error": _returning(None),
        "current_blas_handle": _returning(0),
        "get_sync_debug_mode": _returning(0),
        "get_allocator_backend": _returning("native"),
        "mem_get_info": _returning(_FREE_AND_TOTAL_BYTES),
        **{name: _returning(None) for name in _WITHOUT_EFFECT},
        **_memory(),
        "default_generators": (DefaultGenerator(),),
        "initial_seed": torch.initial_seed,
        "seed_all": _returning(None),
        "manual_seed": lambda seed: _seed(seed),
        "manual_seed_all": lambda seed: _seed(seed),
        "seed": _returning(None),
        "get_rng_state": lambda device=0: torch.get_rng_state(),
        "set_rng_state": lambda state, device=0: torch.set_rng_state(state),
    }


def _torch_accelerator() -> dict[str, Any]:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {
        "is_available": _returning(True),
        "device_count": _returning(1),
        "current_accelerator": _returning(torch.device("cuda")),
        "current_device_index": _returning(0),
        "current_device_idx": _returning(0),
        "set_device_index": _returning(None),
        "set_device_idx": _returning(None),
        "device_index": lambda index=0: nullcontext(),
        "get_device_capability": _returning({"supported_dtypes": dtypes}),
        "synchronize": _returning(None),
        "current_stream": _returning(Stream()),
        "set_stream": _returning(None),
        "Graph": Graph,
        "empty_host_cache": _returning(None),
        "get_memory_info": _returning(_FREE_AND_TOTAL_BYTES),
        **_memory(),
    }


def _memory() -> dict[str, Any]:
    """Return the memory functions that both modules have."""
    return {
        "empty_cache": _returning(None),
        "memory_stats": _returning(Counter()),
        "memory_summary": _returning(""),
        "memory_snapshot": _returning([]),
        **{name: _returning(0) for name in _MEMORY_COUNTERS},
        **{name: _returning(None) for name in _MEMORY_RESETS},
    }


_MEMORY_COUNTERS = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
)
_MEMORY_RESETS = (
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
)
_WITHOUT_EFFECT = (
    "_sleep",
    "set_sync_debug_mode",
    "set_per_process_memory_fraction",
    "_record_memory_history",
    "_dump_snapshot",
)


class _Nothing:
    """A library all of whose functions return 0: success."""

    def __getattr__(self, name: str) -> Any:
        return _returning(0)


_profile: Callable[..., None] = torch.autograd.profiler.profile.__init__


def _profile_host(profile: Any, *arguments: Any, **options: Any) -> None:
    """Profile the host alone: each event of CUDA would be a warning."""
    _profile(profile, *arguments, **{**options, "use_cpu": True, "use_device": None})


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def _returning(value: Any) -> Any:
    """Return a new function that returns `value`. PyTorch's tracer refuses one function under two names."""
    return lambda *unused, **options: value


def _capability(device: Device) -> tuple[int, int]:
    backend, _, name = device.architecture.target.partition(":")
    return (int(name) // 10, int(name) % 10) if backend == "cuda" else (9, 4)


def _properties(device: Device) -> SimpleNamespace:
    architecture = device.architecture
    major, minor = _capability(device)
    bus_bits = 1024  # with this clock the product of both is the bandwidth of the datasheet
    return SimpleNamespace(
        name=device.reported_as[0],
        major=major,
        minor=minor,
        total_memory=80 * _GIGABYTE,
        multi_processor_count=device.multiprocessors,
        warp_size=architecture.warp_size,
        L2_cache_size=device.l2_bytes,
        max_threads_per_multi_processor=architecture.warps * architecture.warp_size,
        max_threads_per_block=1024,
        regs_per_multiprocessor=architecture.registers,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=architecture.shared_bytes - architecture.reserved_shared_bytes,
        shared_memory_per_multiprocessor=architecture.shared_bytes,
        gcnArchName=architecture.target.partition(":")[2],
        memory_bus_width=bus_bits,
        memory_clock_rate=round(device.memory_tb_per_s * 1e9 / (2 * bus_bits / 8)),
        uuid="00000000-0000-0000-0000-000000000000",
        is_integrated=0,
        is_multi_gpu_board=0,
    )
