"""What every rule reads: the trace, the metrics and the binaries of one launch; and the thresholds of the rules."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.hardware.devices import Device
from tilesmith.lab.inspect.metrics.alignment import Alignment
from tilesmith.lab.inspect.metrics.launch_metrics import Metrics
from tilesmith.lab.inspect.model import AccessFacts, Finding, Severity, TargetFacts
from tilesmith.lab.inspect.tracing.trace import Trace
from tilesmith.toolchain.interpreter import Launched

LEAST_SHARE = 0.05  # of a launch's bytes; an access that moves less gets no finding
UNCOALESCED = 0.6  # an access below this efficiency is uncoalesced
REDUNDANT = 1.5  # loads per element by one program
MASKED_WASTE = 0.25  # share of masked lanes
LOW_OCCUPANCY = 0.25
LONG_TAIL = 0.25  # idle share of all waves
BANK_CONFLICT = 1.5  # wavefronts divided by the wavefronts that the bytes need
FEW_WAVEFRONTS = 8  # fewer extra wavefronts, as in reductions, cost next to nothing


@dataclass(frozen=True)
class Evidence:
    """The facts of one launch, from which the rules draw findings."""

    launched: Launched
    trace: Trace
    metrics: Metrics
    targets: Mapping[str, TargetFacts]
    alignment: Alignment
    device: Device | None
    kernel_error: str | None = None
    deciding: frozenset[str] = frozenset()  # the targets on which a failure is an error
    is_on_gpu: Callable[[Any], bool] = lambda tensor: False  # for the script, on a machine without a GPU

    @property
    def file(self) -> str:
        return str(self.launched.kernel.fn.__code__.co_filename)

    @property
    def first_line(self) -> int:
        """The line of the kernel's `def`."""
        kernel = self.launched.kernel
        return int(kernel.starting_line_number) + next(
            (number for number, text in enumerate(kernel.raw_src) if text.lstrip().startswith("def ")), 0
        )

    def failure_severity(self, target: str) -> Severity:
        """Return the severity of a failure on this target: an error only where the script is meant to run."""
        return "error" if target in self.deciding else "info"

    def microseconds(self, moved: int) -> float | None:
        """Return how long this many bytes take at the datasheet's bandwidth."""
        return moved / (self.device.memory_tb_per_s * 1e6) if self.device else None

    def large_accesses(self) -> Sequence[AccessFacts]:
        """Return the accesses that move enough bytes to matter."""
        least = LEAST_SHARE * self.metrics.bytes
        return [one for one in self.metrics.accesses if one.bytes >= least and one.bytes]

    def finding(
        self,
        kind: str,
        severity: Severity,
        message: str,
        advice: str,
        *,
        file: str | None = None,
        line: int | None = None,
        program: tuple[int, int, int] | None = None,
        target: str | None = None,
        cost_bytes: int = 0,
    ) -> Finding:
        file = file or self.file
        return Finding(
            kind, severity, message, advice, file, line,
            code=linecache.getline(file, line).strip() if line else "",
            program=program, target=target, cost_bytes=cost_bytes,
            cost_us=self.microseconds(cost_bytes) if cost_bytes else None,
        )  # fmt: skip
