"""The kernels that an operator of a file launches, compiled for a GPU that this machine lacks."""

from __future__ import annotations

from typing import Any

import torch

from tilesmith.lab.check import input_bytes
from tilesmith.lab.inspect.metrics.compiled_targets import compiled, occupancy_of
from tilesmith.lab.inspect.tracing.launch_signature import constants_of
from tilesmith.spec import Case, Spec
from tilesmith.toolchain.compiler import Target
from tilesmith.toolchain.configurations import Configurations
from tilesmith.toolchain.interpreter import Launched, handing_over

MOST_BYTES = 1 << 30  # of inputs in host memory


def planned_launches(spec: Spec, case: Case, dtype: torch.dtype, target: str) -> list[dict[str, Any]]:
    """Return the facts of the launches of a forward; empty where its inputs are too large or the operator fails.

    The kernels do not run, so an operator that reads their results may fail.
    """
    if input_bytes(spec, case) > MOST_BYTES:
        return []
    seen = _Seen()
    try:
        with handing_over(seen):
            spec.op(**spec.inputs(case, dtype, "cpu"))
        return [_facts(launched, Target.parse(target)) for launched in seen.launches]
    except Exception:  # the check of a small case reports what is wrong with the operator
        return []


class _Seen:
    """Keeps launches instead of running them, with the first configuration of each autotuner."""

    def __init__(self) -> None:
        self.launches: list[Launched] = []
        self._configurations = Configurations()

    def launch(self, launched: Launched) -> None:
        if not launched.warmup:
            self.launches.append(launched)

    def configuration(self, candidates: Any, kernel: Any, arguments: Any) -> Any:
        return self._configurations.chosen(candidates, kernel)


def _facts(launched: Launched, target: Target) -> dict[str, Any]:
    binary = compiled(launched, target)
    filled = occupancy_of(target, binary)
    return {
        "kernel": launched.kernel.__name__,
        "grid": list(launched.grid),
        "constants": constants_of(launched),
        "num_warps": binary.num_warps,
        "num_stages": binary.num_stages,
        "registers": binary.registers,
        "spill_bytes": binary.spill_bytes,
        "shared_bytes": binary.shared_bytes,
        "occupancy": filled.occupancy if filled else None,
    }
