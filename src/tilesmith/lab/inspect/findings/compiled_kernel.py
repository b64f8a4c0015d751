"""Rules about the compiled kernel: compile errors, register spills, bank conflicts, occupancy and waves."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from math import prod

from tilesmith.lab.errors import explain
from tilesmith.lab.inspect.findings.evidence import BANK_CONFLICT, FEW_WAVEFRONTS, LONG_TAIL, LOW_OCCUPANCY, Evidence
from tilesmith.lab.inspect.model import Finding
from tilesmith.toolchain.compiler import (
    DEFAULT_TARGETS,
    MiscompileError,
    accepted_options,
    jit_function,
    may_lose_assignments,
    translate_kernel,
)
from tilesmith.toolchain.compiler.errors import first_reason
from tilesmith.toolchain.launcher import has_scratch_memory

MOST_ON_AXIS = (2**31 - 1, 65_535, 65_535)  # of CUDA


def compile_errors(evidence: Evidence) -> Iterator[Finding]:
    for target, facts in evidence.targets.items():
        if facts.error:
            first, _, rest = facts.error.partition("\n")
            place = first.rpartition("(")[2].rstrip(")").rpartition(":")
            line = _innermost(rest, evidence.file, int(place[2]) if place[2].isdecimal() else None)
            reason = first_reason(rest) or first
            code = linecache.getline(evidence.file, line) if line else ""
            known = explain(reason, code) or explain(facts.error, code)
            advice = "The compiler rejects this code: change what the message names."
            yield evidence.finding(
                "compile-error", evidence.failure_severity(target), f"does not compile for {target}: {reason}",
                known.text if known else advice, line=line, target=target,
            )  # fmt: skip


def _innermost(message: str, file: str, line: int | None) -> int | None:
    """Return the line that a compiler's message shows, where it is in a function that the kernel's `line` calls."""
    shown, marker, _ = message.partition("^")
    text = shown.rstrip().rpartition("\n")[2].strip()
    if not marker or line is None or text == linecache.getline(file, line).strip():
        return line
    places = [number for number, one in enumerate(linecache.getlines(file), 1) if one.strip() == text]
    return places[0] if len(places) == 1 else line


def large_grids(evidence: Evidence) -> Iterator[Finding]:
    """Yield the axes on which a grid has more programs than CUDA launches."""
    grid = evidence.launched.grid
    for target in evidence.targets:
        for axis, most in enumerate(MOST_ON_AXIS) if target.startswith("cuda") else ():
            if grid[axis] > most:
                yield evidence.finding(
                    "compile-error", evidence.failure_severity(target),
                    f"does not launch on {target}: the grid has {grid[axis]:,} programs on axis {axis}, CUDA allows "
                    f"{most:,}",
                    "Put the largest size on axis 0, or let each program do more." if axis
                    else "Let each program do more.", line=evidence.first_line, target=target,
                )  # fmt: skip


def missing_allocators(evidence: Evidence) -> Iterator[Finding]:
    """Yield the targets on which a launch needs memory that Triton does not allocate."""
    for target, facts in evidence.targets.items():
        if facts.scratch_bytes and not has_scratch_memory():
            message = (
                f"does not launch on {target}: each program needs {facts.scratch_bytes:,} bytes of scratch memory, and "
                "no allocator was set"
            )
            known = explain(message)
            yield evidence.finding(
                "compile-error", evidence.failure_severity(target), message,
                known.text if known else "Call triton.set_allocator.", line=evidence.first_line, target=target,
            )  # fmt: skip


def lost_assignments(evidence: Evidence) -> Iterator[Finding]:
    """Yield the assignment that Triton's front end loses; the interpreter, which traced the launch, executes it."""
    launched = evidence.launched
    if not may_lose_assignments(jit_function(launched.kernel)):
        return
    target = DEFAULT_TARGETS[0]
    try:
        options = accepted_options(target, {"enable_fp_fusion": True, **launched.options})
        translate_kernel(launched.kernel, target, launched.arguments, set(), **options)
    except MiscompileError as error:
        lost, _, advice = error.message.partition(". ")
        yield evidence.finding("lost-assignment", "error", lost, advice, file=error.file, line=error.line)
    except Exception:  # another rule reports errors of the compiler
        return


def spills(evidence: Evidence) -> Iterator[Finding]:
    for target, facts in evidence.targets.items():
        if facts.spill_bytes:
            threads = facts.num_warps * (64 if target.startswith("hip") else 32)
            yield evidence.finding(
                "spill", "warning",
                f"registers spill on {target}: {facts.spill_bytes:,} bytes per thread go to local memory and back",
                f"Use smaller tiles, or more than {facts.num_warps} warps.", line=evidence.first_line,
                target=target, cost_bytes=facts.spill_bytes * threads * prod(evidence.launched.grid),
            )  # fmt: skip


def bank_conflicts(evidence: Evidence) -> Iterator[Finding]:
    for target, facts in evidence.targets.items():
        for access in facts.shared_accesses:
            extra = access.wavefronts - access.ideal_wavefronts
            if access.wavefronts >= BANK_CONFLICT * access.ideal_wavefronts and extra >= FEW_WAVEFRONTS:
                yield evidence.finding(
                    "bank-conflict", "info",
                    f"the shared-memory {access.kind}s of a warp take {access.wavefronts} wavefronts on {target}, "
                    f"ideal is {access.ideal_wavefronts}",
                    "The compiler chose this layout: another tile shape or order of dimensions may avoid the conflict.",
                    file=access.file or None, line=access.line or None, target=target,
                )  # fmt: skip


def occupancy(evidence: Evidence) -> Iterator[Finding]:
    for target, facts in evidence.targets.items():
        if facts.occupancy is None:
            continue
        if facts.blocks_per_multiprocessor == 0:
            message = f"does not fit on {target}: one program needs more {facts.limited_by} than a multiprocessor has"
            known = explain(message)
            yield evidence.finding(
                "compile-error", evidence.failure_severity(target), message,
                known.text if known else "Use smaller tiles or fewer stages.", line=evidence.first_line, target=target,
            )  # fmt: skip
        elif facts.occupancy < LOW_OCCUPANCY:
            yield evidence.finding(
                "low-occupancy", "info",
                f"occupancy is {facts.occupancy:.0%} on {target}, limited by {facts.limited_by}",
                "Normal for kernels on tensor cores. Other kernels hide latency better with more warps: use smaller "
                "tiles.", line=evidence.first_line, target=target,
            )  # fmt: skip


def tail_effect(evidence: Evidence) -> Iterator[Finding]:
    """Yield targets on which the last wave leaves much of the GPU idle."""
    programs = prod(evidence.launched.grid)
    for target, facts in evidence.targets.items():
        if facts.occupancy is None or facts.waves is None or facts.tail is None or facts.device is None:
            continue
        if facts.waves > 1 and facts.tail / (facts.waves + facts.tail) > LONG_TAIL:
            yield evidence.finding(
                "low-occupancy", "info",
                f"tail effect on {facts.device}: {programs:,} programs fill {facts.waves:.2f} waves, so "
                f"{facts.tail:.0%} of the last wave is idle",
                "Use a persistent kernel, or choose tiles with which the grid fills whole waves.",
                line=evidence.first_line, target=target,
            )  # fmt: skip
