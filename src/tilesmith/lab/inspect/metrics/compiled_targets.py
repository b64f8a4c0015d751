"""Compile a launch for each target; derive occupancy, waves and the predicted least time."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from tilesmith.hardware.devices import Device, devices, for_target
from tilesmith.hardware.occupancy import Occupancy, occupancy
from tilesmith.hardware.rates import SINGLE_PRECISIONS, Rate, single_precision_rate
from tilesmith.lab.inspect.model import SharedAccess, TargetFacts
from tilesmith.toolchain.compiler import Binary, CompileError, Target, accepted_options, compile_kernel
from tilesmith.toolchain.compiler.shared import shared_accesses
from tilesmith.toolchain.compiler.texts import barriers, by_source_line
from tilesmith.toolchain.interpreter import Launched


@dataclass(frozen=True)
class Work:
    """The least work of a launch: bytes to move once, and flops by the rate at which they run.

    fp32 dots are listed under Triton's input precision ("tf32", "ieee", …), everything else under a dtype.
    """

    bytes: int
    flops: Mapping[str, float]


def compiled(launched: Launched, target: Target) -> Binary:
    """Compile the launch for a target. Raises CompileError."""
    options = accepted_options(target, {"enable_fp_fusion": True, **launched.options})
    return compile_kernel(launched.kernel, target, launched.arguments, **options)  # type: ignore[arg-type]


def compiled_or_error(launched: Launched, target: Target) -> Binary | str:
    """Return the binary, or the reason why compilation failed."""
    try:
        return compiled(launched, target)
    except CompileError as error:
        return _missing_jit(str(error), launched.kernel)
    except Exception as error:  # an internal compiler error counts as a compile error
        return f"{launched.kernel.__name__} does not compile for {target}: {type(error).__name__}: {error}"


def _missing_jit(message: str, kernel: Any) -> str:
    """Return a compiler's message; of a variable that is a plain function, say that its @triton.jit is missing."""
    found = re.search(r"Cannot access global variable (\w+)", message)
    if found is None or not inspect.isfunction(getattr(kernel, "fn", kernel).__globals__.get(found[1])):
        return message
    return message.replace(found[0], f"{found[1]} has no @triton.jit. {found[0]}")


def device_of(target: str) -> Device | None:
    """Return the device whose datasheet represents a target."""
    return next((one for one in devices() if one.architecture.target == target), None)


def occupancy_of(target: Target, binary: Binary) -> Occupancy | None:
    """Return how many programs a multiprocessor holds; None for a target whose limits are not known."""
    try:
        architecture = for_target(str(target))
    except ValueError:
        return None
    return occupancy(
        architecture, num_warps=binary.num_warps, registers=max(1, binary.registers), shared_bytes=binary.shared_bytes
    )


def facts_of(
    target: Target, binary: Binary | str, programs: int, device: Device | None, kernel_file: str, texts: bool
) -> TargetFacts:
    """Return the facts of a launch on this target, without the prediction."""
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
        scratch_bytes=binary.scratch_bytes,
        tensor_cores=binary.tensor_cores,
        async_copies=binary.async_copies,
        barriers=barriers(binary),
        vector_bytes=widest_by_line(binary, kernel_file),
        shared_accesses=tuple(SharedAccess(**vars(one)) for one in shared_accesses(binary)),
        assembly={name: _lines(binary, name, kernel_file) for name in binary.assembly} if texts else {},
    )
    filled = occupancy_of(target, binary)
    if filled is None:
        return facts
    facts = replace(
        facts, occupancy=filled.occupancy, blocks_per_multiprocessor=filled.blocks, limited_by=filled.limited_by
    )
    if device is None or not filled.blocks:
        return facts
    waves = programs / (filled.blocks * device.multiprocessors)
    return replace(facts, waves=waves, tail=ceil(waves) - waves if waves else 0.0)


def with_prediction(facts: TargetFacts, work: Work, device: Device | None) -> TargetFacts:
    """Add the least time that the device's datasheet allows."""
    if device is None or facts.error:
        return facts
    memory_us = work.bytes / (device.memory_tb_per_s * 1e6)
    compute_times: defaultdict[Rate, float] = defaultdict(float)
    for kind, flops in work.flops.items():
        rate = _rate(device, kind)
        compute_times[rate] += flops / (rate.tflop_per_s * 1e6)
    compute_us = sum(compute_times.values())
    slowest_first = sorted(compute_times, key=lambda rate: -compute_times[rate])
    return replace(
        facts,
        predicted_memory_us=memory_us,
        predicted_compute_us=compute_us,
        predicted_floor_us=max(memory_us, compute_us),
        predicted_rates={rate.name: rate.tflop_per_s for rate in slowest_first},
    )


def is_memory_bound(targets: Sequence[TargetFacts]) -> bool:
    """Return whether memory sets the predicted floor of the first target that has a prediction."""
    for facts in targets:
        if facts.predicted_memory_us is not None and facts.predicted_compute_us is not None:
            return facts.predicted_memory_us >= facts.predicted_compute_us
    return True


def widest_by_line(binary: Binary, file: str) -> dict[int, int]:
    """Return the widest global access of each line in the kernel's file, in bytes."""
    widest: dict[int, int] = {}
    for access in binary.accesses:
        if Path(access.file).name == Path(file).name:
            widest[access.line] = max(widest.get(access.line, 0), access.vector_bytes)
    return widest


def _rate(device: Device, kind: str) -> Rate:
    """Return the device's rate for one kind of flops in `Work`."""
    rates = device.tflop_per_s
    if kind == "fp64":
        return Rate("fp64", rates["fp32"] / 2)
    if kind in SINGLE_PRECISIONS:
        # Triton's default is tf32 on devices that have it, exact products elsewhere.
        rate = single_precision_rate(rates, kind) or single_precision_rate(rates, "ieee")
        assert rate is not None, "every datasheet has an fp32 rate"
        return rate
    return Rate(kind, rates[kind]) if kind in rates else Rate("fp32", rates["fp32"])


def _lines(binary: Binary, name: str, kernel_file: str) -> tuple[tuple[int, str], ...]:
    return tuple(
        (line if Path(file).name == Path(kernel_file).name else 0, text)
        for file, line, text in by_source_line(binary, name)
    )
