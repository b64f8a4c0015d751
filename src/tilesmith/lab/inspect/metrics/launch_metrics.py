"""Figures of a launch: the trace, scaled from the traced programs to the grid, joined with the compiler's layouts."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.lab.inspect.metrics.compiled_targets import Work
from tilesmith.lab.inspect.model import AccessFacts, ArgumentFacts, LineCost, ProgramAccess, ProgramFacts, Request
from tilesmith.lab.inspect.tracing.trace import Place, Site, Trace
from tilesmith.lab.transactions import CompiledPlaces, Requested, request_numbers, requested
from tilesmith.toolchain.compiler import Binary
from tilesmith.toolchain.compiler.layouts import LaidOutAccess, owners
from tilesmith.toolchain.interpreter import Launched

MOST_RUNS = 1024
MOST_REQUESTS_SHOWN = 8  # of one execution of an access
WIDEST_ACCESS_BYTES = 16
_COUNTED_AS_FLOPS = ("float", "special", "reduce")
_BY_NAME = {"fp16": "fp16", "bf16": "bf16", "fp64": "fp64", "int8": "fp8"}


@dataclass(frozen=True)
class CompiledAccess:
    """The compiler's layout of an access, and the width of its instructions."""

    layout: LaidOutAccess
    vector_bytes: int


class Metrics:
    """All figures of one launch from its trace and one binary. Without a binary, sectors and requests are unknown."""

    def __init__(self, launched: Launched, trace: Trace, binary: Binary | None, sector_bytes: int) -> None:
        self._launched = launched
        self._trace = trace
        self.sector_bytes = sector_bytes
        self.scale = prod(launched.grid) / max(1, len(trace.traced))
        self.work_scale = prod(launched.grid) / max(1, len(trace.followed_seen))
        self.places = sorted(trace.sites, key=lambda place: (place.line, place.column, place.kind))
        self._laid = self._join(CompiledPlaces(binary)) if binary is not None else {}
        self._requested = {place: self._requests_of(trace.sites[place]) for place in self.places}
        self.accesses = [self._facts(trace.sites[place]) for place in self.places]

    def arguments(self) -> tuple[ArgumentFacts, ...]:
        return tuple(self._argument(parameter) for parameter in self._launched.kernel.params)

    @property
    def bytes(self) -> int:
        return sum(access.bytes for access in self.accesses)

    @property
    def unique_bytes(self) -> int:
        groups: Counter[tuple[str | None, bool, int]] = Counter()
        for place, site in self._trace.sites.items():
            tensor = self._trace.shadows.tensors.get(place.argument or "")
            size = place.element_bytes if tensor is None else tensor.element_size()
            groups[place.argument, place.kind == "load", size] += site.new
        return sum(self._scaled_unique(new, argument) * size for (argument, _, size), new in groups.items())

    def flops_by_kind(self) -> dict[str, float]:
        """Return the flops of the whole grid: dots by operand format (fp32 also by input precision), others by kind."""
        found: Counter[str] = Counter()
        for (_, _, dot_format), flops in self._trace.dot_flops.items():
            found[f"dot {dot_format}"] += round(flops * self.scale)
        for (_, _, kind), count in self._trace.work.items():
            found[kind] += round(count * self.work_scale)
        return dict(found)

    def flops(self) -> float:
        by_kind = self.flops_by_kind()
        return sum(flops for kind, flops in by_kind.items() if kind.startswith("dot") or kind in _COUNTED_AS_FLOPS)

    def work(self) -> Work:
        rates: Counter[str] = Counter()
        for kind, flops in self.flops_by_kind().items():
            if kind.startswith("dot "):
                rates[_rate_name(kind.removeprefix("dot "))] += flops  # type: ignore[assignment]  # a Counter of floats
            elif kind in _COUNTED_AS_FLOPS:
                rates["fp32"] += flops  # type: ignore[assignment]
        return Work(self.unique_bytes, dict(rates))

    def lines(self, memory_bound: bool) -> tuple[LineCost, ...]:
        """Return the cost of each source line."""
        moved: Counter[tuple[str, int]] = Counter()
        sectors: Counter[tuple[str, int]] = Counter()
        flops: defaultdict[tuple[str, int], float] = defaultdict(float)
        for place, access in zip(self.places, self.accesses, strict=True):
            moved[place.file, place.line] += access.bytes
            counted = self._requested[place]
            sectors[place.file, place.line] += round(counted.sectors * self.scale) if counted else 0
        for (file, line, _), count in self._trace.dot_flops.items():
            flops[file, line] += count * self.scale
        for (file, line, kind), count in self._trace.work.items():
            flops[file, line] += count * self.work_scale if kind in _COUNTED_AS_FLOPS else 0
        costs: dict[tuple[str, int], float] = dict(moved) if memory_bound else dict(flops)
        total = sum(costs.values()) or 1.0
        return tuple(
            LineCost(
                *key, linecache.getline(*key).strip(), moved[key], sectors[key], flops[key], costs.get(key, 0.0) / total
            )
            for key in sorted({*moved, *flops})
        )

    def requested_of(self, place: Place) -> Requested | None:
        """Return requests and sectors of one access over the whole grid."""
        counted = self._requested[place]
        return None if counted is None else Requested(*(round(number * self.scale) for number in counted))

    def is_split_by_mask(self, place: Place) -> bool:
        """Return whether a masked access is narrow although each thread's elements are contiguous."""
        laid, site = self._laid.get(place), self._trace.sites[place]
        if laid is None or laid.layout.layout is None or not site.bounded or not site.patterns:
            return False
        shape, layout = laid.layout.shape, laid.layout.layout
        warp, lane, register = (array.reshape(-1) for array in owners(shape, layout))
        if prod(shape) != prod(place.shape) or not register.any():
            return False
        order = np.lexsort((register, lane, warp))
        same_thread = (np.diff(warp[order]) == 0) & (np.diff(lane[order]) == 0) & (register[order][1:] % 2 == 1)
        wide = laid.vector_bytes >= 2 * place.element_bytes
        return (
            not wide
            and all(
                bool(np.all(np.diff(pattern.distances.reshape(-1)[order])[same_thread] == place.element_bytes))
                for pattern in site.patterns.values()
                if pattern.mask.all()
            )
            and any(pattern.mask.all() for pattern in site.patterns.values())
        )

    def reaches_past_data(self, place: Place) -> bool:
        """Return whether the lanes that a mask leaves always form one rectangle."""
        return all(_is_rectangle(pattern.mask) for pattern in self._trace.sites[place].patterns.values())

    def program_facts(self) -> tuple[ProgramFacts, ...]:
        """Return every traced program with its stored tiles; some programs in full."""
        trace = self._trace
        programs = sorted(trace.traced, key=trace.program_number)
        return tuple(
            ProgramFacts(
                program,
                trace.tiles_of(program),
                self._shown_accesses(program) if program in trace.shown else (),
                tuple(trace.shown[program].operations) if program in trace.shown else (),
                trace.steps[program].finished() if program in trace.steps else (),
                trace.steps[program].count if program in trace.steps else 0,
            )
            for program in programs
            if program in trace.tiles or program in trace.shown
        )

    def _join(self, compiled: CompiledPlaces) -> dict[Place, CompiledAccess]:
        columns: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
        for place in self.places:
            columns[place.kind, place.file, place.line].add(place.column)
        found = {}
        for place in self.places:
            on_line = sorted(columns[place.kind, place.file, place.line])
            layout = compiled.laid_out(place, prod(place.shape), on_line)
            if layout is not None:
                vector_bytes = compiled.vector_bytes(place, layout.column) or place.element_bytes
                found[place] = CompiledAccess(layout, vector_bytes)
        return found

    def _requests_of(self, site: Site, vector_bytes: int | None = None) -> Requested | None:
        """Return the sum over the traced executions. Executions without a kept pattern count as the average.

        `vector_bytes` is the width of an instruction, by default the compiled one.
        """
        laid = self._laid.get(site.place)
        if laid is None or (laid.layout.layout is None and not laid.layout.bulk):
            return None
        totals = np.zeros(3, dtype=np.float64)
        kept = 0
        for pattern in site.patterns.values():
            counted = requested(
                laid.layout, vector_bytes or laid.vector_bytes, site.place.element_bytes, pattern.distances,
                pattern.mask, self.sector_bytes,
            )  # fmt: skip
            totals += pattern.count * np.array(counted)
            kept += pattern.count
        if not kept:
            return Requested(0, 0, 0)
        active = sum(pattern.count * int(np.count_nonzero(pattern.mask)) for pattern in site.patterns.values())
        return Requested(*(round(total * site.active / max(1, active)) for total in totals))

    def _facts(self, site: Site) -> AccessFacts:
        place = site.place
        counted = self.requested_of(place)
        laid = self._laid.get(place)
        alike = [one for one in self._trace.sites.values() if _same_target(one.place, place)]
        total = sum(one.active for one in alike)
        all_unique = self._scaled_unique(self._trace.distinct_elements(alike), place.argument)
        return AccessFacts(
            kind=place.kind,
            file=place.file,
            line=place.line,
            column=place.column,
            argument=place.argument,
            element_bytes=place.element_bytes,
            shape=place.shape,
            executions=round(site.executions * self.scale),
            bytes=round(site.active * self.scale) * place.element_bytes,
            unique_bytes=self._scaled_unique(site.unique, place.argument) * place.element_bytes,
            accesses_per_element=round(total * self.scale) / max(1, all_unique),
            repeats=round(site.active * self.scale) / max(1, self._scaled_unique(site.unique, place.argument)),
            again_in_program=site.again / max(1, site.active),
            masked_fraction=1 - site.active / max(1, site.lanes),
            requests=counted.requests if counted else None,
            sectors_per_request=counted.sectors / counted.requests if counted and counted.requests else None,
            ideal_sectors_per_request=counted.ideal / counted.requests if counted and counted.requests else None,
            efficiency=self._efficiency(site, counted),
            vector_bytes=laid.vector_bytes if laid else None,
            pipelined=bool(laid and laid.layout.pipelined),
            bulk=bool(laid and laid.layout.bulk),
            values=site.values,
            touched_bytes=self._touched_bytes(site),
        )

    def _efficiency(self, site: Site, counted: Requested | None) -> float | None:
        """Return the share of the moved bytes that is used.

        A thread with more neighbouring elements than fit into the widest instruction uses the rest of each sector in
        its next instruction, which finds the sector in L1: then all instructions of a warp count as one request.
        """
        if counted is None or not counted.sectors:
            return None
        efficiency = counted.ideal / counted.sectors
        if self._laid[site.place].vector_bytes == WIDEST_ACCESS_BYTES:
            whole = self._requests_of(site, vector_bytes=prod(site.place.shape) * site.place.element_bytes)
            efficiency = max(efficiency, whole.ideal / whole.sectors) if whole else efficiency
        return efficiency

    def _touched_bytes(self, site: Site) -> int:
        """Return the bytes of the sectors that the executions over the whole grid touch."""
        sectors = active = 0
        for pattern in site.patterns.values():
            sectors += pattern.count * np.unique(pattern.distances[pattern.mask] // self.sector_bytes).size
            active += pattern.count * int(np.count_nonzero(pattern.mask))
        return round(sectors * self.sector_bytes * self.scale * site.active / max(1, active))

    def _scaled_unique(self, elements: int, argument: str | None) -> int:
        """Return the distinct elements over the whole grid, at most the size of the tensor."""
        if self.scale <= 1:
            return elements
        tensor = self._trace.shadows.tensors.get(argument or "")
        scaled = round(elements * self.scale)
        return max(elements, min(scaled, tensor.numel())) if tensor is not None else scaled

    def _argument(self, parameter: Any) -> ArgumentFacts:
        name = parameter.name
        tensor = self._trace.shadows.tensors.get(name)
        if tensor is None:
            return ArgumentFacts(name, parameter.is_constexpr, value=repr(self._launched.arguments[name]))
        loads = [one for one in self._trace.sites.values() if (one.place.argument, one.place.kind) == (name, "load")]
        stores = [one for one in self._trace.sites.values() if one.place.argument == name and one.place.kind != "load"]
        loaded, stored = (round(sum(one.active for one in group) * self.scale) for group in (loads, stores))
        unique_loaded, unique_stored = (
            self._scaled_unique(sum(one.new for one in group), name) for group in (loads, stores)
        )
        # Two arguments may be the same tensor: a load of one counts as a load of the other.
        aliases = self.same_tensor(name)
        named = [
            one for one in self._trace.sites.values() if one.place.kind == "load" and one.place.argument in aliases
        ]
        in_program = sum(one.active for one in named)
        new_in_program = in_program - sum(one.again for one in named)
        new = self._scaled_unique(sum(one.new for one in named), name)
        size = tensor.element_size()
        return ArgumentFacts(
            name=name,
            constant=False,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            strides=tensor.stride(),
            alignment=_alignment(tensor.data_ptr()),
            loads_per_element=round(in_program * self.scale) / max(1, new),
            loads_per_element_in_program=in_program / max(1, new_in_program) if in_program else 0.0,
            stores_per_element=stored / max(1, unique_stored),
            loaded_bytes=loaded * size,
            stored_bytes=stored * size,
            unique_loaded_bytes=unique_loaded * size,
            unique_stored_bytes=unique_stored * size,
        )

    def same_tensor(self, argument: str) -> list[str]:
        """Return the arguments that are the same tensor as this one, as when a matrix is multiplied by itself."""
        tensors = self._trace.shadows.tensors
        memory = {name: (one.data_ptr(), one.shape, one.stride()) for name, one in tensors.items()}
        return [name for name in tensors if memory[name] == memory[argument]]

    def _shown_accesses(self, program: tuple[int, int, int]) -> tuple[ProgramAccess, ...]:
        numbers = {place: number for number, place in enumerate(self.places)}
        found = []
        for place, addresses, mask in self._trace.shown[program].accesses:
            tensor = self._trace.shadows.tensors.get(place.argument or "")
            if tensor is None:
                continue
            offsets = (addresses.astype(np.int64) - tensor.data_ptr()) // place.element_bytes
            active = np.unique(offsets[mask])
            runs = _runs(active)
            found.append(
                ProgramAccess(
                    access=numbers[place],
                    active=int(np.count_nonzero(mask)),
                    masked=int(mask.size - np.count_nonzero(mask)),
                    runs=tuple(runs[:MOST_RUNS]),
                    cut=len(runs) > MOST_RUNS,
                    requests=tuple(self._requests_shown(place, addresses, offsets, mask)),
                )
            )
        return tuple(found)

    def _requests_shown(
        self, place: Place, addresses: NDArray[np.uint64], offsets: NDArray[np.int64], mask: NDArray[np.bool_]
    ) -> Iterable[Request]:
        laid = self._laid.get(place)
        if laid is None or laid.layout.layout is None or not place.shape:
            return
        layout, shape = laid.layout.layout, laid.layout.shape
        vector = max(1, laid.vector_bytes // place.element_bytes)
        numbers = request_numbers(shape, layout, vector)
        warp, lane, register = (array.reshape(-1) for array in owners(shape, layout))
        flat_mask, flat_offsets = mask.reshape(-1), offsets.reshape(-1)
        flat_addresses = addresses.reshape(-1).astype(np.int64)
        # The first instruction of every warp, then the second ones.
        order = sorted({(int(register[i] // vector), int(warp[i]), int(numbers[i])) for i in _firsts(numbers)})
        for instruction, warp_number, number in order[:MOST_REQUESTS_SHOWN]:
            chosen = np.flatnonzero((numbers == number) & flat_mask)
            if not chosen.size:
                continue
            lanes: defaultdict[int, list[int]] = defaultdict(list)
            for element in chosen.tolist():
                lanes[int(lane[element])].append(int(flat_offsets[element]))
            touched = np.unique(flat_addresses[chosen] // self.sector_bytes).size
            packed = -(-np.unique(flat_addresses[chosen]).size * place.element_bytes // self.sector_bytes)
            yield Request(
                warp_number, instruction, tuple((each, tuple(lanes[each])) for each in sorted(lanes)), touched, packed
            )


def _same_target(one: Place, other: Place) -> bool:
    return (one.kind, one.argument) == (other.kind, other.argument)


def _firsts(numbers: NDArray[np.int64]) -> list[int]:
    return [int(place) for place in np.unique(numbers, return_index=True)[1]]


def _runs(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return sorted offsets as runs (first offset, length)."""
    if not offsets.size:
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    return [(int(run[0]), len(run)) for run in np.split(offsets, breaks)]


def _alignment(address: int) -> int:
    return min(256, address & -address) if address else 256


def _rate_name(dot_format: str) -> str:
    """Return the name that `Work` uses for the rate of dots of this format."""
    if dot_format.startswith("fp32 "):
        return dot_format.removeprefix("fp32 ")
    return "fp8" if dot_format.startswith("fp8") else _BY_NAME.get(dot_format, "fp32")


def element_name(tensor: torch.Tensor, offset: int) -> str:
    """Return an element's indices as text, such as "[3, 17]", from its offset."""
    if not tensor.is_contiguous() or not 0 <= offset < tensor.numel():
        return f"[{offset}]"
    return f"[{', '.join(map(str, np.unravel_index(offset, tuple(tensor.shape))))}]" if tensor.dim() else "[0]"


def _is_rectangle(mask: NDArray[np.bool_]) -> bool:
    """Return whether the set elements of a mask fill the smallest rectangle around them."""
    places = np.argwhere(mask)
    return bool(np.prod(np.ptp(places, axis=0) + 1) == len(places))
