"""Turn the chosen cases, dtypes, modes, providers and sweep points of a spec into units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilesmith.lab.bench.measuring.timed_calls import providers
from tilesmith.lab.bench.result import MODES, OURS
from tilesmith.lab.bench.running.bench_units import Source, Unit, sweepable_arguments
from tilesmith.lab.bench.sweeps import points
from tilesmith.lab.check import input_bytes
from tilesmith.spec import Case, Spec

# Smaller cases exist for checks: their time is the time of a launch.
SMALLEST_BYTES = 1 << 18
DEFAULT_DTYPE = torch.bfloat16
SHORT_DTYPES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class SelectionError(Exception):
    """The selection is not possible. The message is one line for the user."""


@dataclass(frozen=True)
class Selection:
    """The user's choice, by name; None selects the default."""

    cases: Sequence[str] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtypes: Sequence[str] | None = None
    modes: Sequence[str] | None = None
    rivals: Sequence[str] | None = None
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    predicting: bool = False

    def among(self, specs: Sequence[Spec]) -> list[Selection]:
        """Return one selection per operator, each with those of the named cases that the operator has.

        Raises SelectionError for a case that no operator has. An operator without any of the cases keeps all names, so
        that `units` refuses them by name.
        """
        if self.cases is None or list(self.cases) == ["all"] or len(specs) == 1:
            return [self] * len(specs)
        owned = [{case.name for case in spec.cases} for spec in specs]
        unknown = [name for name in self.cases if name not in set().union(*owned)]
        if unknown:
            raise SelectionError(f"none of {', '.join(spec.name for spec in specs)} has a case {', '.join(unknown)}")
        return [
            replace(self, cases=[name for name in self.cases if name in names] or self.cases) for names in owned
        ]  # fmt: skip

    @property
    def takes_largest_case(self) -> bool:
        """Return whether a predicted sweep uses the largest case only: compiling every point takes seconds, and
        blocks of a large case spill on small ones, which compile slowest."""
        return self.predicting and self.cases is None and not self.sizes and bool(self.sweep)


def units(spec: Spec, source: Source, selection: Selection) -> tuple[Unit, ...]:
    """Return all combinations, case by case. Raises SelectionError, or SpecError for an unknown case."""
    chosen_cases, chosen_dtypes = _cases(spec, selection), _dtypes(spec, selection.dtypes)
    if selection.sweep:
        _require_fields(spec, source, chosen_cases[0], chosen_dtypes[0], selection.sweep)
    return tuple(
        Unit(case, dtype, mode, provider, config)
        for case in chosen_cases
        for dtype in chosen_dtypes
        for mode in _modes(spec, selection.modes)
        for provider in _providers(spec, selection)
        for config in points(selection.sweep)
    )


def _cases(spec: Spec, selection: Selection) -> list[Case]:
    if selection.takes_largest_case:
        return [max(spec.cases, key=lambda case: _bytes(spec, case) or input_bytes(spec, case))]
    if selection.cases is None and selection.predicting and not selection.sizes:
        # Small cases included: the interpreter can check them.
        chosen = list(spec.cases)
    elif selection.cases is None:
        # If every size is given, the choice of the case does not matter.
        chosen = [case for case in spec.cases if _is_large(spec, case)] or list(spec.cases)
    elif list(selection.cases) == ["all"]:
        chosen = list(spec.cases)
    else:
        chosen = [spec.case(name) for name in selection.cases]
    if not selection.sizes:
        return chosen
    if selection.sizes.keys() >= chosen[0].sizes.keys():
        return [Case("custom", **chosen[0].with_sizes(**selection.sizes).sizes)]
    return [case.with_sizes(**selection.sizes) for case in chosen]


def _is_large(spec: Spec, case: Case) -> bool:
    return spec.cost is None or _bytes(spec, case) >= SMALLEST_BYTES


def _bytes(spec: Spec, case: Case) -> int:
    return 0 if spec.cost is None else spec.cost(case, DEFAULT_DTYPE).forward.bytes


def _dtypes(spec: Spec, names: Sequence[str] | None) -> list[torch.dtype]:
    known = {str(dtype).removeprefix("torch."): dtype for dtype in spec.dtypes}
    if names is None:
        return [DEFAULT_DTYPE if DEFAULT_DTYPE in spec.dtypes else spec.dtypes[0]]
    if "all" in names:
        return list(spec.dtypes)
    full = [SHORT_DTYPES.get(name, name) for name in names]
    unknown = [name for name in full if name not in known]
    if unknown:
        raise SelectionError(f"{spec.name} has no dtype {', '.join(unknown)}; it has {', '.join(known)}")
    return [known[name] for name in full]


def _modes(spec: Spec, names: Sequence[str] | None) -> Sequence[str]:
    if names is None:
        return ("fwd", "bwd") if spec.differentiable else ("fwd",)
    unknown = [name for name in names if name not in MODES]
    if unknown:
        raise SelectionError(f"--mode: {', '.join(unknown)} is not one of {', '.join(MODES)}")
    return names


def _providers(spec: Spec, selection: Selection) -> list[str]:
    if selection.sweep:
        return [OURS]
    known = providers(spec)
    return known if selection.rivals is None else [name for name in known if name in (OURS, *selection.rivals)]


def _require_fields(spec: Spec, source: Source, case: Case, dtype: torch.dtype, sweep: Mapping[str, object]) -> None:
    """Refuse a swept field that no kernel has: it would give the same time at every point."""
    known = source.fields(spec, case, dtype) if source.fields else sweepable_arguments(spec)
    unknown = [name for name in sweep if name not in known]
    if unknown:
        what = "kernel configuration" if source.fields else "argument of its operator"
        has = ", ".join(known) if known else "none"
        raise SelectionError(f"--sweep: {spec.name} has no {what} {', '.join(unknown)}; it has {has}")
