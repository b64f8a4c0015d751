"""What an inspection is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.hardware.devices import device as named_device
from tilesmith.toolchain.compiler import DEFAULT_TARGETS, Target

EVERY_CONFIGURATION = "all"


class InspectError(Exception):
    """The options of an inspection contradict the program. The message is one line for the user."""


@dataclass(frozen=True)
class InspectOptions:
    """Which kernels to inspect, for which targets, and how many programs to trace.

    `asked` says that the user named the targets. Then a failure on any of them is an error; otherwise only on the
    first, which the script is told it runs on.
    """

    targets: tuple[Target, ...] = DEFAULT_TARGETS  # empty: nothing is compiled
    asked: bool = False
    programs: int | None = None  # how many programs to trace; None: as many as `seconds` allow
    seconds: float = 3.0  # time to trace one launch
    suspects: bool = True  # compute the addresses of all programs, and trace those out of bounds or that share elements
    config: str | None = None  # an autotuner's configuration: its number, FIELD=VALUE,…, or all
    case: str | None = None  # of the file's SPEC; None: the largest that the interpreter can run
    kernels: tuple[str, ...] = ()  # kernel names to inspect; empty: all
    device: str | None = None  # the device to predict for
    precision: bool = False  # also compute sampled programs in float64, and show the error by line
    alignment: bool = True  # compile again with aligned arguments where accesses are narrow, to name the cause
    texts: bool = False  # keep the compiler's texts (PTX, SASS, …)
    not_compiled: tuple[tuple[str, str], ...] = ()  # (kernel, target) pairs that crashed the compiler before

    @property
    def first_target(self) -> Target:
        """The target whose GPU the program sees."""
        return (*self.targets, *DEFAULT_TARGETS)[0]

    @property
    def deciding(self) -> tuple[Target, ...]:
        """The targets on which a failure is an error."""
        return self.targets if self.asked else self.targets[:1]


def default_targets(device: str | None) -> tuple[Target, ...]:
    """Return the target of the device, then the default target of the other vendor."""
    if device is None:
        return DEFAULT_TARGETS
    own = Target.parse(named_device(device).architecture.target)
    return own, *(one for one in DEFAULT_TARGETS if one.backend != own.backend)


def chosen_configuration(text: str, candidates: Sequence[Any]) -> Any:
    """Return the autotuner configuration that --config names. Raises InspectError."""
    if text.isdecimal():
        if int(text) >= len(candidates):
            raise InspectError(f"--config {text}: there are {len(candidates)} configurations, numbered from 0")
        return candidates[int(text)]
    wanted = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    for candidate in candidates:
        fields = {name: str(value) for name, value in candidate.all_kwargs().items()}
        if wanted and all(fields.get(name.strip()) == value.strip() for name, value in wanted.items()):
            return candidate
    offered = "; ".join(f"{number}: {candidate}" for number, candidate in enumerate(candidates))
    raise InspectError(f"--config {text!r} matches none of the configurations ({offered})")
