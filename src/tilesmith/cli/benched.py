"""Our own operators as the benchmark takes them: how a child process finds one, and how a sweep reaches its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tilesmith.hardware.devices import for_target
from tilesmith.hardware.occupancy import occupancy
from tilesmith.lab.bench.subjects import as_outputs, gradients, leaves_of
from tilesmith.lab.bench.units import Source
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.dispatch import configured, use
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.spec import Case, Spec, load_file
from tilesmith.toolchain.compiler import DEFAULT_TARGETS, Target, compile_kernel


def source_of(spec: Spec, name: str) -> Source:
    """Where the spec that goes by this name on the command line comes from."""
    if SPECS.get(name) is not spec:
        return Source(partial(load_file, Path(name)), file=name)
    return Source(partial(operator_spec, name), fields=launch_fields, configured=with_fields, planned=planned)


def operator_spec(name: str) -> Spec:
    return SPECS[name]


@contextmanager
def with_fields(**fields: Any) -> Iterator[None]:
    """Our kernels with these fields of their configurations, also where PyTorch would be the faster choice."""
    with use("triton"), configured(**fields):
        yield


def launch_fields(spec: Spec, case: Case, dtype: torch.dtype) -> list[str]:
    """Fields of the configurations of all kernels that the operator launches for this case."""
    launches = _launches(spec, case, dtype, "both" if spec.differentiable else "fwd")
    return list(dict.fromkeys(name for launch in launches for name in launch.config.fields()))


def planned(spec: Spec, case: Case, dtype: torch.dtype, mode: str, target: str) -> list[dict[str, Any]]:
    """What would be launched on a GPU that is not here, compiled for it."""
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
    }
