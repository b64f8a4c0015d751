"""Rules about global memory: narrow, uncoalesced, repeated and masked accesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tilesmith.lab.inspect.findings.evidence import LEAST_SHARE, MASKED_WASTE, REDUNDANT, UNCOALESCED, Evidence
from tilesmith.lab.inspect.model import AccessFacts, Finding
from tilesmith.lab.report.number_format import lines_in_words


def narrow(evidence: Evidence) -> Iterator[Finding]:
    """Yield each cause of narrow accesses once: the arguments that are not aligned."""
    by_cause: dict[tuple[tuple[str, str], ...], list[AccessFacts]] = {}
    for access in evidence.large_accesses():
        if _could_be_wider(evidence, access):
            by_cause.setdefault(tuple(evidence.alignment.causes[access.line].items()), []).append(access)
    for cause, accesses in by_cause.items():
        first = max(accesses, key=lambda one: _wasted_bytes(evidence, one))
        others = sorted({one.line for one in accesses} - {first.line})
        names = " and ".join(f"{name} ({value})" for name, value in cause)
        verb = "is not a multiple" if len(cause) == 1 else "are not multiples"
        also = f"; so do the accesses in {lines_in_words(others)}" if others else ""
        yield evidence.finding(
            "misaligned", "warning",
            f"{_subject(first)} moves {first.vector_bytes} bytes per thread and instruction instead of "
            f"{evidence.alignment.widths_if_aligned[first.line]}, because {names} {verb} of 16{also}",
            "Pad sizes and strides to multiples of 16 elements, and start tensors at multiples of 16 bytes.",
            file=first.file, line=first.line, cost_bytes=sum(_wasted_bytes(evidence, one) for one in accesses),
        )  # fmt: skip


def narrowed_by_mask(evidence: Evidence) -> Iterator[Finding]:
    """Yield contiguous accesses that the compiler splits into narrow instructions because of their mask."""
    for place, access in zip(evidence.metrics.places, evidence.metrics.accesses, strict=True):
        if access not in evidence.large_accesses() or not evidence.metrics.is_split_by_mask(place):
            continue
        if not _could_be_wider(evidence, access):
            yield evidence.finding(
                "misaligned", "info",
                f"{_subject(access)} moves {access.vector_bytes} bytes per thread and instruction: neighbouring "
                "elements are contiguous, but the mask may change between any two of them",
                "Compare offsets with a bound that is a multiple of 16 (offsets < n), where the size allows it.",
                file=access.file, line=access.line,
            )  # fmt: skip


def _could_be_wider(evidence: Evidence, access: AccessFacts) -> bool:
    return 0 < (access.vector_bytes or 0) < evidence.alignment.widths_if_aligned.get(access.line, 0)


def uncoalesced(evidence: Evidence) -> Iterator[Finding]:
    for place, access in zip(evidence.metrics.places, evidence.metrics.accesses, strict=True):
        if access not in evidence.large_accesses():
            continue
        is_narrow = _could_be_wider(evidence, access) or evidence.metrics.is_split_by_mask(place)
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
    """Yield tensors that a program loads more than once, each with all of its arguments."""
    reported: set[str] = set()
    for argument in evidence.metrics.arguments():
        times = argument.loads_per_element_in_program
        if times < REDUNDANT or argument.name in reported:
            continue
        names = evidence.metrics.same_tensor(argument.name)
        reported.update(names)
        loads = [one for one in evidence.metrics.accesses if one.kind == "load" and one.argument in names]
        repeated = round(sum(one.bytes for one in loads) * (1 - 1 / times))
        if not loads or repeated < LEAST_SHARE * evidence.metrics.bytes:
            continue
        last = max(loads, key=lambda one: (one.again_in_program * one.bytes, one.line))
        several = len(names) > 1
        yield evidence.finding(
            "redundant-load", "info",
            f"each program loads each element of {' and '.join(names)}{', one tensor,' if several else ''} "
            f"{times:.1f} times",
            "Pass different tensors, so that only the repeated loads of the kernel itself count."
            if several
            else "Keep the elements in registers if the block fits; otherwise let the later loads hit in L2.",
            file=last.file, line=last.line, cost_bytes=repeated,
        )  # fmt: skip


def masked(evidence: Evidence) -> Iterator[Finding]:
    """Yield accesses of blocks that reach past the data. A mask may also follow values, as in tl.atomic_max of floats,
    which is one atomic for the positive numbers and one for the others."""
    for place, access in zip(evidence.metrics.places, evidence.metrics.accesses, strict=True):
        if access not in evidence.large_accesses() or prod(access.shape) <= 1:
            continue
        if access.masked_fraction > MASKED_WASTE and evidence.metrics.reaches_past_data(place):
            yield evidence.finding(
                "masked-waste", "info",
                f"{_share(access.masked_fraction)} of the lanes of this {access.kind} are masked off",
                f"Blocks of {_sizes(access.shape)} elements reach past the data: use smaller blocks, or sizes that "
                "divide the data.",
                file=access.file, line=access.line,
            )  # fmt: skip


def _sizes(shape: Sequence[int]) -> str:
    return " × ".join(str(size) for size in shape if size > 1)


def _subject(access: AccessFacts) -> str:
    return f"the {access.kind} of {access.argument or 'memory'}"


def _wasted_bytes(evidence: Evidence, access: AccessFacts) -> int:
    """Return the bytes of all sectors beyond the ideal number."""
    if access.requests is None or access.sectors_per_request is None or access.ideal_sectors_per_request is None:
        return 0
    extra = access.requests * (access.sectors_per_request - access.ideal_sectors_per_request)
    return round(extra) * evidence.metrics.sector_bytes


def _share(fraction: float) -> str:
    """Return a share in percent; 100% is all of it."""
    return "more than 99%" if 0.995 <= fraction < 1 else f"{fraction:.0%}"
