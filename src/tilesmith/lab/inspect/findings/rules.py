"""What is worth telling the author of a kernel: what, where, how much, and what to try. One sentence each."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tilesmith.hardware.devices import Device
from tilesmith.lab.inspect.metrics.launch_metrics import Metrics, element_name
from tilesmith.lab.inspect.model import AccessFacts, Finding, Severity, TargetFacts
from tilesmith.lab.inspect.tracing.sanitizer import Incident
from tilesmith.lab.inspect.tracing.trace import Trace
from tilesmith.toolchain.interpreter import Launched

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}

LEAST_SHARE = 0.05  # of a launch's bytes; what moves less is not worth a sentence
UNCOALESCED = 0.6  # efficiency below which an access is called so
REDUNDANT = 1.5  # loads per element by one program
MASKED_WASTE = 0.25
LOW_OCCUPANCY = 0.25
LONG_TAIL = 0.25  # of the time of all waves
BANK_CONFLICT = 1.5  # times the wavefronts that the bytes need
FEW_WAVEFRONTS = 8  # reductions pass a few numbers through shared memory; nobody waits for those


@dataclass(frozen=True)
class Evidence:
    """All that findings are drawn from."""

    launched: Launched
    trace: Trace
    metrics: Metrics
    targets: Mapping[str, TargetFacts]
    widths_if_aligned: Mapping[int, int]
    misaligned: Mapping[str, str]
    device: Device | None
    kernel_error: str | None = None

    @property
    def file(self) -> str:
        return str(self.launched.kernel.fn.__code__.co_filename)

    def microseconds(self, moved: int) -> float | None:
        """How long so many bytes take from memory, at the datasheet's rate."""
        return moved / (self.device.memory_tb_per_s * 1e6) if self.device else None

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


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """Everything found: errors first, then what costs most."""
    found = [
        *_kernel_error(evidence),
        *_incidents(evidence),
        *_compile_errors(evidence),
        *_spills(evidence),
        *_narrow(evidence),
        *_uncoalesced(evidence),
        *_redundant(evidence),
        *_masked(evidence),
        *_missing_masks(evidence),
        *_bank_conflicts(evidence),
        *_occupancy(evidence),
        *_overlaps(evidence),
    ]
    return tuple(sorted(found, key=lambda one: (_ORDER[one.severity], -one.cost_bytes)))


def _kernel_error(evidence: Evidence) -> Iterator[Finding]:
    if evidence.kernel_error:
        yield evidence.finding(
            "kernel-error", "error", evidence.kernel_error, "Mend the line it names; nothing after it was traced.",
            line=None,
        )  # fmt: skip


def _incidents(evidence: Evidence) -> Iterator[Finding]:
    for incident in evidence.trace.sanitizer.incidents():
        yield _finding_of(evidence, incident)


def _finding_of(evidence: Evidence, incident: Incident) -> Finding:
    def made(kind: str, severity: Severity, message: str, advice: str) -> Finding:
        return evidence.finding(
            kind, severity, message, advice, file=incident.file, line=incident.line, program=incident.program
        )

    name = incident.argument or "memory"
    tensor = evidence.trace.shadows.tensors.get(incident.argument or "")
    element = name if incident.element is None or tensor is None else name + element_name(tensor, incident.element)
    count = f"{incident.elements:,} element{'' if incident.elements == 1 else 's'}"
    program, other = incident.program, incident.other
    match incident.kind:
        case "out-of-bounds":
            where = incident.message.split(": ", 1)[-1]
            return made(
                "out-of-bounds", "error", f"program {program} does a {where}; {count} in all",
                "Mask off the lanes that lie outside, or correct the offsets.",
            )  # fmt: skip
        case "write-write":
            return made(
                "race", "error", f"programs {other} and {program} both write {element}, {count} in all: "
                "which value stays is left to chance", "Give each program its own elements, or use an atomic.",
            )  # fmt: skip
        case "same-value":
            return made(
                "race", "warning", f"programs {other} and {program} both write {element}, {count} in all, with the "
                "same value here", "Let one program write it, so that no other value can ever depend on chance.",
            )  # fmt: skip
        case "read-write":
            return made(
                "race", "error", f"program {program} and program {other} use {element} at once, {count} in all: one "
                "reads what the other writes", "Read from one tensor and write to another, or use two launches.",
            )  # fmt: skip
        case "lanes":
            return made(
                "race", "error", f"lanes of one store write different values to the same element of {name}, {count} "
                "in all", "Make the offsets of a store differ, or mask the duplicates off.",
            )  # fmt: skip
        case "uninitialised":
            return made(
                "uninitialised", "error", f"program {program} loads {element}, which nobody has written; {count} in "
                "all", "Fill the tensor first (torch.zeros instead of torch.empty), or mask the load.",
            )  # fmt: skip
        case _:
            file, _, line = incident.message.rpartition(":")
            return made(
                "overflow", "error", f"the address of this {incident.access} overflows 32 bits at "
                f"{Path(file).name}:{line}, in program {program}", "Widen first: tl.program_id(0).to(tl.int64).",
            )  # fmt: skip


def _compile_errors(evidence: Evidence) -> Iterator[Finding]:
    for target, facts in evidence.targets.items():
        if facts.error:
            first, _, rest = facts.error.partition("\n")
            place = first.rpartition("(")[2].rstrip(")").rpartition(":")
            line = int(place[2]) if place[2].isdecimal() else None
            reason = rest.strip().splitlines()[-1].strip() if rest.strip() else first
            yield evidence.finding(
                "compile-error", "error", f"does not compile for {target}: {reason}",
                "The interpreter accepts more than the compiler: change what it names.", line=line, target=target,
            )  # fmt: skip


def _spills(evidence: Evidence) -> Iterator[Finding]:
    for target, facts in evidence.targets.items():
        if facts.spill_bytes:
            threads = facts.num_warps * (64 if target.startswith("hip") else 32)
            yield evidence.finding(
                "spill", "warning", f"registers run out on {target}: each thread moves {facts.spill_bytes:,} "
                "bytes to memory and back",
                f"Use a smaller block, or more warps than {facts.num_warps}.", line=_first_line(evidence),
                target=target, cost_bytes=facts.spill_bytes * threads * prod(evidence.launched.grid),
            )  # fmt: skip


def _narrow(evidence: Evidence) -> Iterator[Finding]:
    """Accesses that the compiler would make wider, could it count on the arguments' alignment."""
    for access in _worth_telling(evidence):
        possible = evidence.widths_if_aligned.get(access.line, 0)
        if access.vector_bytes and possible > access.vector_bytes:
            names = " and ".join(f"{name} ({value})" for name, value in evidence.misaligned.items())
            verb = "is not a multiple" if len(evidence.misaligned) == 1 else "are not multiples"
            yield evidence.finding(
                "misaligned", "warning",
                f"{_does(access)} {access.vector_bytes} bytes per thread and instruction instead of {possible}: "
                f"{names} {verb} of 16", "Pad sizes and strides to multiples of 16 elements, and start "
                "tensors at multiples of 16 bytes.", file=access.file, line=access.line,
                cost_bytes=_wasted(evidence, access),
            )  # fmt: skip


def _uncoalesced(evidence: Evidence) -> Iterator[Finding]:
    for access in _worth_telling(evidence):
        widened = evidence.widths_if_aligned.get(access.line, 0) > (access.vector_bytes or 0)
        if access.efficiency is None or access.efficiency >= UNCOALESCED or widened:
            continue
        ideal, real = access.ideal_sectors_per_request, access.sectors_per_request
        yield evidence.finding(
            "uncoalesced", "warning",
            f"{_does(access)} {real:.1f} sectors per request where {ideal:.1f} would do: "
            f"{access.efficiency:.1%} of what is moved is used",
            "Let neighbouring lanes touch neighbouring elements: walk the dimension of stride 1 fastest.",
            file=access.file, line=access.line, cost_bytes=_wasted(evidence, access),
        )  # fmt: skip


def _redundant(evidence: Evidence) -> Iterator[Finding]:
    for argument in evidence.metrics.arguments():
        if argument.loads_per_element_in_program < REDUNDANT:
            continue
        loads = [one for one in evidence.metrics.accesses if (one.argument, one.kind) == (argument.name, "load")]
        last = max(loads, key=lambda one: (one.again_in_program * one.bytes, one.line))
        spare = round(argument.loaded_bytes * (1 - 1 / argument.loads_per_element_in_program))
        if spare < LEAST_SHARE * evidence.metrics.bytes:
            continue
        yield evidence.finding(
            "redundant-load", "info",
            f"each program loads each element of {argument.name} {argument.loads_per_element_in_program:.1f} times",
            "Keep it in registers if the block holds it; otherwise see that the second pass finds it in L2.",
            file=last.file, line=last.line, cost_bytes=spare,
        )  # fmt: skip


def _masked(evidence: Evidence) -> Iterator[Finding]:
    for access in _worth_telling(evidence):
        if access.masked_fraction > MASKED_WASTE and prod(access.shape) > 1:
            yield evidence.finding(
                "masked-waste", "info",
                f"{access.masked_fraction:.0%} of the lanes of this {access.kind} are masked off",
                f"A block of {prod(access.shape):,} is larger than what it covers: take a smaller one.",
                file=access.file, line=access.line,
            )  # fmt: skip


def _missing_masks(evidence: Evidence) -> Iterator[Finding]:
    """Blocks that reach the end of a tensor without a mask, in kernels that are told a size."""
    told = [
        parameter.name
        for parameter in evidence.launched.kernel.params
        if not parameter.is_constexpr and isinstance(evidence.launched.arguments[parameter.name], int)
    ]
    for place in evidence.metrics.places:
        site = evidence.trace.sites[place]
        bounded = site.bounded or "mask" in linecache.getline(place.file, place.line)
        if told and site.always_full and site.reaches_end and prod(place.shape) > 1 and not bounded:
            yield evidence.finding(
                "missing-mask", "info",
                f"this {place.kind} of {place.argument} has no mask and ends with the tensor: a size that the block "
                "does not divide would reach outside", "Mask it, or refuse such sizes.",
                file=place.file, line=place.line,
            )  # fmt: skip


def _bank_conflicts(evidence: Evidence) -> Iterator[Finding]:
    for target, facts in evidence.targets.items():
        for access in facts.shared_accesses:
            spare = access.wavefronts - access.ideal_wavefronts
            if access.wavefronts >= BANK_CONFLICT * access.ideal_wavefronts and spare >= FEW_WAVEFRONTS:
                yield evidence.finding(
                    "bank-conflict", "info",
                    f"shared memory takes {access.wavefronts} turns for the {access.kind}s of a warp here where "
                    f"{access.ideal_wavefronts} would do on {target}",
                    "The compiler chose this layout: another tile shape or order of dimensions may avoid it.",
                    file=access.file or None, line=access.line or None, target=target,
                )  # fmt: skip


def _occupancy(evidence: Evidence) -> Iterator[Finding]:
    programs = prod(evidence.launched.grid)
    for target, facts in evidence.targets.items():
        if facts.occupancy is None:
            continue
        if facts.blocks_per_multiprocessor == 0:
            yield evidence.finding(
                "compile-error", "error", f"does not fit on {target}: too much {facts.limited_by}",
                "Use a smaller block or fewer stages.", line=_first_line(evidence), target=target,
            )  # fmt: skip
        elif facts.occupancy < LOW_OCCUPANCY:
            yield evidence.finding(
                "low-occupancy", "info",
                f"{facts.occupancy:.0%} of a multiprocessor's warps are in use on {target}, limited by "
                f"{facts.limited_by}", "Fine for kernels on matrix units; others hide latency better with more.",
                line=_first_line(evidence), target=target,
            )  # fmt: skip
        if facts.waves is None or facts.tail is None or facts.device is None:
            continue
        if facts.waves > 1 and facts.tail / (facts.waves + facts.tail) > LONG_TAIL:
            yield evidence.finding(
                "low-occupancy", "info",
                f"{programs:,} programs fill {facts.waves:.2f} waves on {facts.device}: {facts.tail:.0%} of the last "
                "one idles", "Let programs take several tiles, or choose tiles that divide the grid evenly.",
                line=_first_line(evidence), target=target,
            )  # fmt: skip


def _overlaps(evidence: Evidence) -> Iterator[Finding]:
    """Arguments that share some of their memory, one of which is written."""
    tensors = evidence.trace.shadows.tensors
    written = {place.argument for place in evidence.metrics.places if place.kind != "load"}
    spans = {name: _span(one.data_ptr(), one) for name, one in tensors.items() if one.numel()}
    names = sorted(spans)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            (start, end), (other_start, other_end) = spans[first], spans[second]
            interleaved = tensors[first].stride() == tensors[second].stride() and not tensors[first].is_contiguous()
            apart = end <= other_start or other_end <= start or (start, end) == (other_start, other_end) or interleaved
            if not apart and {first, second} & written:
                yield evidence.finding(
                    "overlap", "warning", f"{first} and {second} share some of their memory, and one of them is "
                    "written", "Give the output memory of its own.", line=_first_line(evidence),
                )  # fmt: skip


def _span(start: int, tensor: object) -> tuple[int, int]:
    import torch

    assert isinstance(tensor, torch.Tensor)
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (reach + 1) * tensor.element_size()


def _worth_telling(evidence: Evidence) -> Sequence[AccessFacts]:
    least = LEAST_SHARE * evidence.metrics.bytes
    return [one for one in evidence.metrics.accesses if one.bytes >= least and one.bytes]


def _wasted(evidence: Evidence, access: AccessFacts) -> int:
    if access.requests is None or access.sectors_per_request is None or access.ideal_sectors_per_request is None:
        return 0
    spare = access.requests * (access.sectors_per_request - access.ideal_sectors_per_request)
    return round(spare) * evidence.metrics.sector_bytes


def _does(access: AccessFacts) -> str:
    verb = {"load": "is loaded with", "store": "is stored with", "atomic": "is updated with"}[access.kind]
    return f"{access.argument or 'memory'} {verb}"


def _first_line(evidence: Evidence) -> int:
    kernel = evidence.launched.kernel
    return int(kernel.starting_line_number) + next(
        (place for place, text in enumerate(kernel.raw_src) if text.lstrip().startswith("def ")), 0
    )
