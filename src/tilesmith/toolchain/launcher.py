"""Launching a compiled kernel again with one C call.

At every launch Triton inspects each argument, selects the compiled variant, and checks whether a global changed:
11.8 µs of host time on an H200's host. Here this is done once; later launches only fill in addresses. A TMA descriptor
holds an address, so there is one for each address. Descriptors are cached, since PyTorch's allocator reuses memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import _allocation

from tilesmith.toolchain.cache_folder import require_writable_cache
from tilesmith.toolchain.gluon import DESCRIPTORS
from tilesmith.toolchain.versions import triton_version


class Pointer(Protocol):
    """A tensor whose address is known only at the launch; `slot` is its index in the list of addresses."""

    slot: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        """Return zero where the address will be a multiple of 16 bytes, else one: compilation depends on that only."""


Grid = tuple[int, int, int]
Filled = Callable[[Sequence[int]], Sequence[Any]]
Start = Callable[[int, Sequence[int]], None]


listeners: list[Callable[[Launch], None]] = []
"""Called at every launch: these launches bypass Triton, so its hooks do not see them."""


class Launch:
    """One kernel on one grid; all arguments but the addresses are fixed."""

    __slots__ = ("_filled", "compiled", "constants", "grid", "kernel", "start")

    def __init__(self, kernel: Any, grid: Grid, arguments: Mapping[str, object], options: Mapping[str, Any]) -> None:
        """Compile for the current device, or take the variant from Triton's cache."""
        require_writable_cache()
        compiled = kernel.run(grid=grid, warmup=True, **arguments, **options)
        self.compiled = compiled.result() if hasattr(compiled, "result") else compiled
        self.kernel = kernel
        self.grid = grid
        self.constants = {one.name: arguments[one.name] for one in kernel.params if one.is_constexpr}
        in_order = [arguments[name] for name in kernel.arg_names]
        self._filled = _filler(in_order, [_placed(one) for one in in_order if isinstance(one, DESCRIPTORS)])
        self.start: Start = _starter(self.compiled, grid, in_order, self._filled)

    def start_watched(self, stream: int, addresses: Sequence[int]) -> None:
        """Tell listeners and Triton's hooks of the launch, and start it."""
        for listener in listeners:
            listener(self)
        if _has_hook():
            with scratch_memory():
                self.compiled[self.grid](*self._filled(addresses), stream=stream)
        else:
            self.start(stream, addresses)


def _has_hook() -> bool:
    """Whether a profiler has set a hook. A chain of hooks may be empty."""
    hook = knobs.runtime.launch_enter_hook
    return hook is not None and bool(getattr(hook, "calls", True))


def is_watched() -> bool:
    """Whether someone must be told of launches: these are then started by `start_watched`."""
    return bool(listeners) or _has_hook()


MOST_ADDRESSES = 256  # cached for each descriptor; bounds the memory of a program whose addresses never repeat


class _ByAddress(dict[int, Any]):
    """An argument by address, created at first use."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make

    def __missing__(self, address: int) -> Any:
        if len(self) >= MOST_ADDRESSES:
            self.clear()
        made = self[address] = self._make(address)
        return made


class _Address:
    """An address in the form of a tensor, as Triton expects it."""

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self._address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        return self._address


def _placed(descriptor: Any) -> _ByAddress:
    """Return the descriptor by address."""
    return _ByAddress(lambda address: replace(descriptor, base=_Address(address, descriptor.base.dtype)))


def _filler(arguments: Sequence[Any], descriptors: Sequence[_ByAddress]) -> Filled:
    """Return a function from the addresses of a launch to the kernel's arguments."""
    pointers = {place: value.slot for place, value in enumerate(arguments) if hasattr(value, "slot")}
    described = [(place, one.base.slot) for place, one in enumerate(arguments) if isinstance(one, DESCRIPTORS)]
    made = [(place, slot, by_address) for (place, slot), by_address in zip(described, descriptors, strict=True)]
    leading = len(pointers)
    if not made and leading > 1 and max(pointers) == leading - 1:  # pointers come first: one slice, no loop
        pick, rest = itemgetter(*pointers.values()), tuple(arguments[leading:])
        return lambda addresses: pick(addresses) + rest

    def filled(addresses: Sequence[int]) -> Sequence[Any]:
        copy = list(arguments)
        for place, slot in pointers.items():
            copy[place] = addresses[slot]
        for place, slot, by_address in made:
            copy[place] = by_address[addresses[slot]]
        return copy

    return filled


def _starter(compiled: Any, grid: Grid, arguments: Sequence[Any], filled: Filled) -> Start:
    """Return the function that starts a compiled kernel with the least host time."""
    run = compiled.run  # loads the binary onto the device
    function, packed, metadata = compiled.function, compiled.packed_metadata, compiled.metadata
    if triton_version() == (3, 6) and type(run).__name__ == "CudaLauncher" and not metadata.profile_scratch_size:
        # 5.6 µs instead of 6.9 on an H200's host: Triton's wrapper checks at every call for scratch memory.
        launch, filled = _without_wrapper(run.launch, metadata, arguments, filled)
        cooperative, dependent = run.launch_cooperative_grid, run.launch_pdl
        scratch_bytes = metadata.global_scratch_size * metadata.num_ctas * grid[0] * grid[1] * grid[2]

        def start(stream: int, addresses: Sequence[int]) -> None:
            scratch = _allocate(scratch_bytes, 0, stream) if scratch_bytes else None
            launch(
                *grid, stream, function, cooperative, dependent, scratch, None, packed, None, None, None,
                *filled(addresses),
            )  # fmt: skip

        return start
    if needs_scratch(metadata):

        def start_with_scratch(stream: int, addresses: Sequence[int]) -> None:
            with scratch_memory():
                run(*grid, stream, function, packed, None, None, None, *filled(addresses))

        return start_with_scratch
    return lambda stream, addresses: run(*grid, stream, function, packed, None, None, None, *filled(addresses))


def _without_wrapper(
    launch: Any, metadata: Any, arguments: Sequence[Any], filled: Filled
) -> tuple[Callable[..., None], Filled]:
    """Return Triton 3.6's compiled entry point, and its arguments: a descriptor is expanded to its parts.

    For kernels with descriptors, Triton wraps the entry point in a function that encodes each descriptor at every call.
    """
    count = sum(isinstance(one, DESCRIPTORS) for one in arguments)
    if count == 0:
        return launch, filled
    facts = iter(metadata.tensordesc_meta or [None] * count)  # None where the kernel does not use TMA
    expanded: list[Any] = []
    encoded: list[_ByAddress] = []
    for argument in arguments:
        expanded.append(argument)
        if isinstance(argument, DESCRIPTORS):
            fact, walk = next(facts), [*argument.shape, *argument.strides]
            expanded += walk if fact is not None else [*walk, argument.padding == "nan", *walk]
            encoded.append(_ByAddress(partial(_first_part, _placed(argument), fact)))
    hidden = dict(zip(launch.__code__.co_freevars, launch.__closure__, strict=True))
    return hidden["launcher"].cell_contents, _filler(expanded, encoded)


def _first_part(placed: _ByAddress, fact: Any, address: int) -> Any:
    """Return the first part of an expanded descriptor: its encoding, or its memory."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    return make_tensordesc_arg(placed[address], fact)[0]


def needs_scratch(metadata: Any) -> bool:
    """Whether a launch must allocate scratch memory for the compiler."""
    return bool(metadata.global_scratch_size or metadata.profile_scratch_size)


def _allocate(size: int, alignment: int, stream: int | None) -> Tensor:
    """Return memory on the current device. PyTorch aligns it to 512 bytes, and reuses it in stream order.

    Kernels that create TMA descriptors on the device store them there.
    """
    return torch.empty(size, dtype=torch.int8, device="cuda")


def has_scratch_memory() -> bool:
    """Return whether kernels get scratch memory: the user has set an allocator."""
    return not isinstance(_allocation._allocator.get(), _allocation.NullAllocator)


@contextmanager
def scratch_memory() -> Iterator[None]:
    """Give kernels scratch memory inside the context, whatever allocator the user has set."""
    before = _allocation._allocator.set(_allocate)
    try:
        yield
    finally:
        _allocation._allocator.reset(before)
