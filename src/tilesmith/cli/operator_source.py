"""Our operators as subjects of the benchmark: how a child process loads one, and how a sweep sets its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tilesmith.hardware.devices import for_target
from tilesmith.hardware.occupancy import occupancy
from tilesmith.lab.bench.measuring.timed_calls import as_outputs, gradients, leaves_of
from tilesmith.lab.bench.running.bench_units import Source
from tilesmith.lab.transactions import MOST_PROGRAMS, transactions
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.dispatch import configured, use
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.plan import Operand, PlannedLaunch
from tilesmith.spec import Case, Spec, load_file
from tilesmith.toolchain.compiler import DEFAULT_TARGETS, Binary, Target, compile_kernel
from tilesmith.toolchain.interpreter import KernelError, OutOfBounds

MOST_BYTES_FOLLOWED = 8 * 2**20  # traced in the interpreter; 8 MiB take up to 20 seconds
GPU_ALIGNMENT = 512  # bytes; torch aligns GPU allocations to this


def source_of(spec: Spec, name: str) -> Source:
    """Return the source of the spec with this name on the command line."""
    if SPECS.get(name) is not spec:
        return Source(partial(load_file, Path(name)), file=name)
    return Source(partial(operator_spec, name), None, launch_fields, with_fields, planned, taken)


def operator_spec(name: str) -> Spec:
    return SPECS[name]


@contextmanager
def with_fields(**fields: Any) -> Iterator[None]:
    """Use our kernels with these configuration fields, also where PyTorch is faster."""
    with use("triton"), configured(**fields):
        yield


def taken(spec: Spec, case: Case, dtype: torch.dtype, mode: str) -> str:
    """Return which provider computes this case under `auto` on the current GPU."""
    operator = spec.op
    assert isinstance(operator, Operator), f"{spec.name} is not declared with @operator"
    inputs = spec.inputs(case, dtype, "meta")
    if mode != "fwd":
        inputs |= leaves_of(spec, inputs)
    device = torch.device("cuda", torch.cuda.current_device())
    arguments = operator.completed(**inputs)
    natively = operator.torch_computes(arguments, device, "forward" if mode == "fwd" else "backward")
    return "torch" if natively else "tilesmith"


def launch_fields(spec: Spec, case: Case, dtype: torch.dtype) -> list[str]:
    """Return the configuration fields of all kernels that the operator launches for this case."""
    launches = _launches(spec, case, dtype, "both" if spec.differentiable else "fwd")
    return list(dict.fromkeys(name for launch in launches for name in launch.config.fields()))


def planned(spec: Spec, case: Case, dtype: torch.dtype, mode: str, target: str) -> list[dict[str, Any]]:
    """Return the facts of the launches on another GPU, with kernels compiled for that GPU."""
    return [_facts(launch, target) for launch in _launches(spec, case, dtype, mode, target)]


def _launches(
    spec: Spec, case: Case, dtype: torch.dtype, mode: str, target: str = str(DEFAULT_TARGETS[0])
) -> list[PlannedLaunch]:
    arguments = spec.inputs(case, dtype, "meta")
    with use("triton"), recorded_plans(target) as plans:
        if mode == "fwd":
            spec.op(**arguments)
        else:
            leaves = leaves_of(spec, arguments)
            outputs = as_outputs(spec.op(**{**arguments, **leaves}))
            forward = len(plans)
            gradients(outputs, leaves, [torch.empty_like(output) for output in outputs], retain=False)
            if mode == "bwd":
                del plans[:forward]
    return [launch for plan in plans for launch in plan.launches]


def _facts(launch: PlannedLaunch, target: str) -> dict[str, Any]:
    binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
    filled = occupancy(
        for_target(target), num_warps=binary.num_warps, registers=binary.registers, shared_bytes=binary.shared_bytes
    )
    return {
        "kernel": launch.kernel.__name__,
        "grid": list(launch.grid),
        "constants": launch.config.constants(),
        "num_warps": launch.config.num_warps,
        "num_stages": launch.config.num_stages,
        "registers": binary.registers,
        "spill_bytes": binary.spill_bytes,
        "shared_bytes": binary.shared_bytes,
        "occupancy": filled.occupancy,
        "limited_by": filled.limited_by,
        **_sector_facts(launch, binary),
    }


def _sector_facts(launch: PlannedLaunch, binary: Binary) -> dict[str, Any]:
    """Return the memory transactions of a launch, or a note on why they are unknown."""
    facts: dict[str, Any] = dict.fromkeys(("sectors", "ideal_sectors", "sectors_sampled", "sectors_note"))
    if binary.target.backend != "cuda":
        return {**facts, "sectors_note": "counted for NVIDIA GPUs only"}
    too_large = {**facts, "sectors_note": "too large to trace"}
    if _bytes_to_follow(launch) > MOST_BYTES_FOLLOWED:
        return too_large
    try:
        counted = transactions(launch.kernel, launch.grid, _in_host_memory(launch), binary)
    except MemoryError:
        return too_large
    except (KernelError, OutOfBounds) as error:
        return {**facts, "sectors_note": f"tracing failed: {error}"}
    if counted.unknown:
        return {**facts, "sectors_note": f"unknown layout: {', '.join(counted.unknown)}"}
    if counted.sampled < counted.programs:
        facts["sectors_note"] = f"{counted.sampled} programs were sampled"
    return {
        **facts,
        "sectors": counted.sectors,
        "ideal_sectors": counted.ideal,
        "sectors_sampled": counted.sampled,
    }


def _in_host_memory(launch: PlannedLaunch) -> dict[str, object]:
    """Return the arguments with zeros for the plan's tensors: only addresses matter."""
    return launch.on({operand.slot: _untouched_zeros(operand) for operand in launch.operands()})


def _untouched_zeros(operand: Operand) -> torch.Tensor:
    """Return zeros that use no memory where no program accesses them; torch.zeros would write all of them."""
    size = _storage_bytes(operand)
    memory = np.zeros(size + GPU_ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % GPU_ALIGNMENT
    elements = torch.from_numpy(memory[start : start + size]).view(operand.dtype)
    return elements.as_strided(operand.shape, operand.strides)


def _storage_bytes(operand: Operand) -> int:
    imagined = torch.empty_strided(operand.shape, operand.strides, dtype=operand.dtype, device="meta")
    return imagined.untyped_storage().nbytes()


def _bytes_to_follow(launch: PlannedLaunch) -> float:
    """Return the bytes that the traced programs access; the programs of a small grid access everything."""
    held = sum(_storage_bytes(operand) for operand in launch.operands())
    return held * min(1.0, MOST_PROGRAMS / prod(launch.grid))
