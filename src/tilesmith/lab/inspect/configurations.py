"""The configurations of an autotuner: which one a launch takes, and with `--config all` a table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

import torch

from tilesmith.hardware.devices import Device
from tilesmith.lab.inspect.metrics.compiled_targets import Work, facts_of, occupancy_of, with_prediction
from tilesmith.lab.inspect.metrics.measured_time import measured_us
from tilesmith.lab.inspect.model import ConfigurationFacts, TargetFacts
from tilesmith.lab.inspect.options import EVERY_CONFIGURATION, chosen_configuration
from tilesmith.lab.inspect.tracing.launch_signature import is_plain
from tilesmith.toolchain.compiler import Binary, Target, jit_function
from tilesmith.toolchain.compiler.errors import first_reason
from tilesmith.toolchain.interpreter import Launched, configured

CLEARLY_SLOWER = 1.5  # a predicted least time this much above the best one's cannot win


@dataclass
class Configurations:
    """Chooses configurations, and keeps the facts of all of them where they are asked for.

    `binary` compiles a launch, or returns the reason why it does not compile.
    """

    config: str | None
    target: Target
    device: Device | None
    has_gpu: bool
    binary: Callable[[Launched, Target], Binary | str]
    _tables: dict[Any, list[ConfigurationFacts]] = field(default_factory=dict)

    def chosen(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        """Return the configuration that --config names, or the first one that compiles and fits.

        With `--config all` on a GPU: the fastest one.
        """
        if self.config == EVERY_CONFIGURATION:
            return self._best_of_all(candidates, kernel, arguments)
        if self.config is not None:
            return chosen_configuration(self.config, candidates)
        if len(candidates) == 1:
            return candidates[0]
        for candidate in candidates:
            launched = _launched(kernel, configured(arguments, candidate))
            if launched is None or self._fits(launched):
                return candidate
        return candidates[0]

    def table(self, launched: Launched, work: Work) -> tuple[ConfigurationFacts, ...]:
        """Return the configurations of the autotuner that made this launch, with predictions and verdicts."""
        return _judged([_predicted(one, work, self.device) for one in self._tables.pop(launched.kernel, [])])

    def _best_of_all(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        table = []
        for number, candidate in enumerate(candidates):
            launched = _launched(kernel, configured(arguments, candidate))
            facts = self._facts(launched)
            if launched is None or facts is None:
                return candidates[0]
            values = {name: value for name, value in candidate.all_kwargs().items() if is_plain(value)}
            fits = not facts.error and facts.blocks_per_multiprocessor != 0
            measured = measured_us(launched) if self.has_gpu and fits else None
            table.append(ConfigurationFacts(number, values, prod(launched.grid), facts, measured_us=measured))
        fitting = [one for one in table if not one.facts.error and one.facts.blocks_per_multiprocessor != 0]
        timed = [one for one in fitting if one.measured_us is not None]
        best = min(timed, key=lambda one: one.measured_us or 0.0) if timed else (fitting or table)[0]
        self._tables[jit_function(kernel)] = [replace(one, chosen=one is best) for one in table]
        return candidates[best.number]

    def _fits(self, launched: Launched) -> bool:
        with torch._C.DisableTorchFunction():
            binary = self.binary(launched, self.target)
        if isinstance(binary, str):
            return False
        filled = occupancy_of(self.target, binary)
        return filled is None or filled.blocks > 0

    def _facts(self, launched: Launched | None) -> TargetFacts | None:
        if launched is None:
            return None
        with torch._C.DisableTorchFunction():
            binary = self.binary(launched, self.target)
            return facts_of(self.target, binary, prod(launched.grid), self.device, "", texts=False)


def _launched(kernel: Any, named: dict[str, Any]) -> Launched | None:
    """Return the launch that these arguments make; None while one is missing."""
    function, named = jit_function(kernel), dict(named)
    while kernel is not function:
        for name, heuristic in getattr(kernel, "values", {}).items():
            named[name] = heuristic(named)
        kernel = kernel.fn
    arguments = {name: value for name, value in named.items() if name in function.arg_names}
    for parameter in function.params:
        if parameter.name not in arguments and parameter.has_default:
            arguments[parameter.name] = parameter.default
    if any(name not in arguments for name in function.arg_names):
        return None
    options = {name: value for name, value in named.items() if name not in arguments and name not in ("grid", "warmup")}
    grid = named.get("grid", (1,))
    sizes = (*(grid(named) if callable(grid) else grid), 1, 1)[:3]
    return Launched(function, (int(sizes[0]), int(sizes[1]), int(sizes[2])), arguments, options)


def _predicted(one: ConfigurationFacts, work: Work, device: Device | None) -> ConfigurationFacts:
    """Add the least time: the busiest multiprocessor computes a whole number of programs."""
    facts = with_prediction(one.facts, work, device)
    if device is None or facts.predicted_compute_us is None or facts.predicted_memory_us is None or not one.programs:
        return replace(one, facts=facts)
    each = one.programs / device.multiprocessors
    least = max(facts.predicted_memory_us, facts.predicted_compute_us * ceil(each) / each)
    spilled = 0.0
    if facts.spill_bytes:
        spilled = facts.spill_bytes * facts.num_warps * 32 * one.programs / (device.memory_tb_per_s * 1e6)
    return replace(one, facts=facts, predicted_us=least, spill_us=spilled)


def _judged(table: list[ConfigurationFacts]) -> tuple[ConfigurationFacts, ...]:
    """Add to each configuration the reason why it cannot win, if there is one."""
    usable = [one for one in table if not one.facts.error and one.facts.blocks_per_multiprocessor != 0]
    least = min((one.predicted_us for one in usable if one.predicted_us is not None), default=None)
    clean = any(not one.facts.spill_bytes for one in usable)
    return tuple(replace(one, cannot_win=_reason(one, least, clean)) for one in table)


def _reason(one: ConfigurationFacts, least: float | None, clean: bool) -> str | None:
    facts = one.facts
    if facts.error:
        head, _, rest = facts.error.partition("\n")
        return f"does not compile: {first_reason(rest) or head}"
    if facts.blocks_per_multiprocessor == 0:
        return f"does not fit: one program needs more {facts.limited_by} than a multiprocessor has"
    if one.predicted_us is None or least is None:
        return None
    if one.predicted_us > CLEARLY_SLOWER * least:
        return f"leaves multiprocessors idle: {one.programs:,} programs (predicted)"
    if clean and one.spill_us > (CLEARLY_SLOWER - 1) * least:
        return f"spills {facts.spill_bytes:,} bytes per thread (predicted)"
    return None
