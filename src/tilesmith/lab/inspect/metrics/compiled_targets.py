"""What the compiler makes of a launch for each target, GPU or not, and what the hardware makes of that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch

from tilesmith.hardware.devices import Device, devices, for_target
from tilesmith.hardware.occupancy import occupancy
from tilesmith.hardware.rates import SINGLE_PRECISIONS, Rate, single_precision_rate
from tilesmith.lab.inspect.model import SharedAccess, TargetFacts
from tilesmith.toolchain.compiler import Binary, CompileError, Target, accepted_options, compile_kernel
from tilesmith.toolchain.compiler.shared import shared_accesses
from tilesmith.toolchain.compiler.texts import barriers, by_source_line
from tilesmith.toolchain.interpreter import Launched

ALIGNMENT = 16  # bytes, and what an integer must be a multiple of, for the compiler to count on it


@dataclass(frozen=True)
class Work:
    """What a launch must do at least: bytes to move once, and flops by the rate they run at.

    Dots of single precision are under Triton's names for how exactly they are done, everything else under a dtype.
    """

    bytes: int
    flops: Mapping[str, float]


def compiled(launched: Launched, target: Target) -> Binary:
    """The launch compiled for a target. Raises CompileError."""
    options = accepted_options(target, {"enable_fp_fusion": True, **launched.options})
    return compile_kernel(launched.kernel, target, launched.arguments, **options)  # type: ignore[arg-type]


def compiled_or_error(launched: Launched, target: Target) -> Binary | str:
    """The binary, or why there is none."""
    try:
        return compiled(launched, target)
    except CompileError as error:
        return str(error)
    except Exception as error:  # an internal failure of the compiler is the kernel's problem too
        return f"{launched.kernel.__name__} does not compile for {target}: {type(error).__name__}: {error}"


def device_of(target: str) -> Device | None:
    """The device that stands for a target."""
    return next((one for one in devices() if one.architecture.target == target), None)


def facts_of(
    target: Target, binary: Binary | str, programs: int, device: Device | None, kernel_file: str, texts: bool
) -> TargetFacts:
    """What is known of a launch on this target, but for the prediction."""
    title = device.title if device else None
    if isinstance(binary, str):
        return TargetFacts(str(target), title, error=binary)
    facts = TargetFacts(
        target=str(target),
        device=title,
        num_warps=binary.num_warps,
        num_stages=binary.num_stages,
        registers=binary.registers,
        scalar_registers=binary.scalar_registers,
        spill_bytes=binary.spill_bytes,
        stack_bytes=binary.stack_bytes,
        shared_bytes=binary.shared_bytes,
        tensor_cores=binary.tensor_cores,
        async_copies=binary.async_copies,
        barriers=barriers(binary),
        vector_bytes=widest_by_line(binary, kernel_file),
        shared_accesses=tuple(SharedAccess(**vars(one)) for one in shared_accesses(binary)),
        assembly={name: _lines(binary, name, kernel_file) for name in binary.assembly} if texts else {},
    )
    try:
        architecture = for_target(str(target))
    except ValueError:
        return facts
    filled = occupancy(
        architecture, num_warps=binary.num_warps, registers=max(1, binary.registers), shared_bytes=binary.shared_bytes
    )
    facts = replace(
        facts, occupancy=filled.occupancy, blocks_per_multiprocessor=filled.blocks, limited_by=filled.limited_by
    )
    if device is None or not filled.blocks:
        return facts
    waves = programs / (filled.blocks * device.multiprocessors)
    return replace(facts, waves=waves, tail=ceil(waves) - waves if waves else 0.0)


def predicted(facts: TargetFacts, work: Work, device: Device | None) -> TargetFacts:
    """With the time that no launch on the device can beat, by its datasheet."""
    if device is None or facts.error:
        return facts
    memory_us = work.bytes / (device.memory_tb_per_s * 1e6)
    taken_us: defaultdict[Rate, float] = defaultdict(float)
    for kind, flops in work.flops.items():
        rate = _rate(device, kind)
        taken_us[rate] += flops / (rate.tflop_per_s * 1e6)
    compute_us = sum(taken_us.values())
    return replace(
        facts,
        predicted_memory_us=memory_us,
        predicted_compute_us=compute_us,
        predicted_floor_us=max(memory_us, compute_us),
        predicted_rates={rate.name: rate.tflop_per_s for rate in sorted(taken_us, key=lambda rate: -taken_us[rate])},
    )


def widest_by_line(binary: Binary, file: str) -> dict[int, int]:
    """The widest instruction of each line of the kernel's file that touches global memory."""
    widest: dict[int, int] = {}
    for access in binary.accesses:
        if Path(access.file).name == Path(file).name:
            widest[access.line] = max(widest.get(access.line, 0), access.vector_bytes)
    return widest


def unaligned(launched: Launched) -> dict[str, str]:
    """Arguments on whose alignment the compiler cannot count, with what they are."""
    found = {}
    for parameter in launched.kernel.params:
        value = launched.arguments[parameter.name]
        if parameter.is_constexpr or isinstance(value, bool):
            continue
        if isinstance(value, torch.Tensor) and value.data_ptr() % ALIGNMENT:
            found[parameter.name] = f"starts {value.data_ptr() % ALIGNMENT} bytes past a multiple of {ALIGNMENT}"
        elif isinstance(value, int) and value > 1 and value % ALIGNMENT:
            found[parameter.name] = f"{value}"
    return found


def aligned(launched: Launched, but: str | None = None) -> Launched:
    """The same launch, had all its integers and addresses been multiples of 16; or all but one."""
    changed: dict[str, Any] = {}
    for name in unaligned(launched):
        if name == but:
            continue
        value = launched.arguments[name]
        changed[name] = -(-value // ALIGNMENT) * ALIGNMENT if isinstance(value, int) else _Aligned(value.dtype)
    return replace(launched, arguments={**launched.arguments, **changed})


@dataclass(frozen=True)
class _Aligned:
    """A tensor at an address that is a multiple of anything, as far as the compiler asks."""

    dtype: torch.dtype

    def data_ptr(self) -> int:
        return 0


def _rate(device: Device, kind: str) -> Rate:
    """The rate of flops of a kind of `Work`."""
    rates = device.tflop_per_s
    if kind == "fp64":
        return Rate("fp64", rates["fp32"] / 2)
    if kind in SINGLE_PRECISIONS:
        # A kernel that asks for nothing gets tf32 where there is such a thing, and exact products elsewhere.
        rate = single_precision_rate(rates, kind) or single_precision_rate(rates, "ieee")
        assert rate is not None, "every datasheet has a rate of fp32"
        return rate
    return Rate(kind, rates[kind]) if kind in rates else Rate("fp32", rates["fp32"])


def _lines(binary: Binary, name: str, kernel_file: str) -> tuple[tuple[int, str], ...]:
    return tuple(
        (line if Path(file).name == Path(kernel_file).name else 0, text)
        for file, line, text in by_source_line(binary, name)
    )
