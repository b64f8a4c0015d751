"""Rules about global memory: narrow, uncoalesced, repeated and masked accesses."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilesmith.lab.inspect.findings.evidence import LEAST_SHARE, MASKED_WASTE, REDUNDANT, UNCOALESCED, Evidence
from tilesmith.lab.inspect.model import AccessFacts, Finding


def narrow(evidence: Evidence) -> Iterator[Finding]:
    """Yield accesses that would be wider if the arguments were aligned."""
    misaligned = evidence.alignment.misaligned
    for access in evidence.large_accesses():
        possible = evidence.alignment.widths_if_aligned.get(access.line, 0)
        if access.vector_bytes and possible > access.vector_bytes:
            names = " and ".join(f"{name} ({value})" for name, value in misaligned.items())
            verb = "is not a multiple" if len(misaligned) == 1 else "are not multiples"
            yield evidence.finding(
                "misaligned", "warning",
                f"{_subject(access)} moves {access.vector_bytes} bytes per thread and instruction instead of "
                f"{possible}, because {names} {verb} of 16",
                "Pad sizes and strides to multiples of 16 elements, and start tensors at multiples of 16 bytes.",
                file=access.file, line=access.line, cost_bytes=_wasted_bytes(evidence, access),
            )  # fmt: skip


def uncoalesced(evidence: Evidence) -> Iterator[Finding]:
    for access in evidence.large_accesses():
        is_narrow = evidence.alignment.widths_if_aligned.get(access.line, 0) > (access.vector_bytes or 0)
        if access.efficiency is None or access.efficiency >= UNCOALESCED or is_narrow:
            continue
        ideal, real = access.ideal_sectors_per_request, access.sectors_per_request
        yield evidence.finding(
            "uncoalesced", "warning",
            f"{_subject(access)} takes {real:.1f} sectors per request, ideal is {ideal:.1f}: {access.efficiency:.1%} "
            "of the moved bytes are used",
            "Let neighbouring lanes access neighbouring elements: the last dimension of the tile should walk the "
            "dimension of stride 1.",
            file=access.file, line=access.line, cost_bytes=_wasted_bytes(evidence, access),
        )  # fmt: skip


def redundant(evidence: Evidence) -> Iterator[Finding]:
    """Yield arguments that a program loads more than once."""
    for argument in evidence.metrics.arguments():
        times = argument.loads_per_element_in_program
        if times < REDUNDANT:
            continue
        loads = [one for one in evidence.metrics.accesses if (one.argument, one.kind) == (argument.name, "load")]
        last = max(loads, key=lambda one: (one.again_in_program * one.bytes, one.line))
        repeated = round(argument.loaded_bytes * (1 - 1 / times))
        if repeated < LEAST_SHARE * evidence.metrics.bytes:
            continue
        yield evidence.finding(
            "redundant-load", "info", f"each program loads each element of {argument.name} {times:.1f} times",
            "Keep the elements in registers if the block fits; otherwise let the later loads hit in L2.",
            file=last.file, line=last.line, cost_bytes=repeated,
        )  # fmt: skip


def masked(evidence: Evidence) -> Iterator[Finding]:
    for access in evidence.large_accesses():
        if access.masked_fraction > MASKED_WASTE and prod(access.shape) > 1:
            yield evidence.finding(
                "masked-waste", "info",
                f"{access.masked_fraction:.0%} of the lanes of this {access.kind} are masked off",
                f"The block of {prod(access.shape):,} elements is larger than the data: use a smaller block.",
                file=access.file, line=access.line,
            )  # fmt: skip


def _subject(access: AccessFacts) -> str:
    return f"the {access.kind} of {access.argument or 'memory'}"


def _wasted_bytes(evidence: Evidence, access: AccessFacts) -> int:
    """Return the bytes of all sectors beyond the ideal number."""
    if access.requests is None or access.sectors_per_request is None or access.ideal_sectors_per_request is None:
        return 0
    extra = access.requests * (access.sectors_per_request - access.ideal_sectors_per_request)
    return round(extra) * evidence.metrics.sector_bytes
