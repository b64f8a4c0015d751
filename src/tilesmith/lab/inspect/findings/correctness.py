"""Rules about wrong results: races, out-of-bounds accesses, uninitialised loads, missing masks and overlaps."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.lab.errors import explain
from tilesmith.lab.inspect.findings.evidence import Evidence
from tilesmith.lab.inspect.metrics.launch_metrics import element_name
from tilesmith.lab.inspect.model import Finding, Kernel, Program, Severity
from tilesmith.lab.inspect.tracing.sanitizer import Incident
from tilesmith.lab.inspect.tracing.trace import Trace
from tilesmith.toolchain.interpreter import OutOfBounds
from tilesmith.toolchain.interpreter.observing.observers import IN_64_BITS
from tilesmith.toolchain.interpreter.running import UNKNOWN

_UNMASKED = {"load": 1, "store": 2}  # arguments without a mask
MASK_OFF = "Mask off the lanes outside the tensor, or correct the offsets."


def kernel_error(evidence: Evidence) -> Iterator[Finding]:
    if evidence.kernel_error and evidence.kernel_error.startswith(UNKNOWN):
        advice = "The facts of the compiled kernel follow; its accesses and results are not checked."
        yield evidence.finding("not-interpreted", "info", evidence.kernel_error, advice, line=evidence.first_line)
    elif evidence.kernel_error and not _compiler_says_it(evidence):
        known = explain(evidence.kernel_error)
        advice = known.text if known else "Fix the line that the message names. Nothing after it was traced."
        yield evidence.finding("kernel-error", "error", evidence.kernel_error, advice)


def _compiler_says_it(evidence: Evidence) -> bool:
    """Return whether a compile error, which names the line, has the interpreter's message."""
    message = str(evidence.kernel_error).partition("Error: ")[2].partition("\n")[0]
    failures = [
        facts.error for target, facts in evidence.targets.items() if target in evidence.deciding and facts.error
    ]
    return bool(message) and any(message in failure for failure in failures)


def host_tensors(evidence: Evidence) -> Iterator[Finding]:
    """Yield the tensors on the CPU that a launch gets beside tensors on the GPU."""
    tensors = evidence.trace.shadows.tensors
    on_host = [name for name, tensor in tensors.items() if not evidence.is_on_gpu(tensor)]
    if 0 < len(on_host) < len(tensors):
        names, is_one = " and ".join(on_host), len(on_host) == 1
        yield evidence.finding(
            "host-tensor", "warning",
            f"{names} {'is' if is_one else 'are'} on the CPU, other tensors are on the GPU: on a GPU, Triton refuses "
            "a tensor on the CPU unless its memory is pinned",
            f"Move {'it' if is_one else 'them'} first: {on_host[0]}.to(\"cuda\").", line=evidence.first_line,
        )  # fmt: skip


def incidents(evidence: Evidence) -> Iterator[Finding]:
    """Yield what the sanitizer detected."""
    one_warp = evidence.launched.options.get("num_warps") == 1
    for incident in evidence.trace.sanitizer.incidents():
        if one_warp and incident.kind == "maybe threads":
            continue
        kind, severity, message, advice = explained(evidence.trace, incident)
        if one_warp and incident.kind == "threads":
            severity = "warning"
            message += ": right only while the lanes of the one warp run in step, which no GPU since Volta promises"
        yield evidence.finding(
            kind, severity, message, advice, file=incident.file, line=incident.line, program=incident.program
        )


def explained(trace: Trace, incident: Incident) -> tuple[str, Severity, str, str]:
    """Return the kind, severity, message and advice for an incident."""
    name = incident.argument or "memory"
    tensor = trace.shadows.tensors.get(incident.argument or "")
    element = name if incident.element is None or tensor is None else name + element_name(tensor, incident.element)
    count = f"{incident.elements:,} element{'' if incident.elements == 1 else 's'} in total"
    program, other = incident.program, incident.other
    match incident.kind:
        case "out-of-bounds":
            access = incident.message.split(": ", 1)[-1]
            message = f"program {program} does an out-of-bounds {access}; {count}"
            return "out-of-bounds", "error", message, MASK_OFF
        case "write-write":
            message = f"programs {other} and {program} both write {element} ({count}): their order decides the value"
            return "race", "error", message, "Let each program write its own elements, or add with tl.atomic_add."
        case "same-value":
            message = f"programs {other} and {program} both write {element} ({count}), here with the same value"
            return "race", "warning", message, "Let one program write the element: other inputs may give two values."
        case "read-write":
            message = f"program {program} and program {other} race on {element} ({count}): one reads it, one writes it"
            advice = "Write to a tensor that no program reads, use two launches, or add with tl.atomic_add."
            return "race", "error", message, advice
        case "threads" | "maybe threads":
            certain = incident.kind == "threads"
            earlier, _, line = incident.message.partition(":")
            message = (
                f"this {incident.access} and the {earlier} at line {line} access {element} ({count}) in different "
            )
            message += "threads of one program, with no barrier between" + (
                "" if certain else " but a reduction or dot"
            )
            advice = "Call tl.debug_barrier() between the two, or keep the value in a register."
            return "race", "error" if certain else "warning", message, advice
        case "shared race":
            advice = "Wait here first: mbarrier.wait, tma.store_wait, warpgroup_mma_wait or async_copy.wait_group."
            return "race", "error", f"{incident.message}, in program {program}", advice
        case "shared unwritten":
            advice = "Wait for the copy that fills this memory, or store to it first."
            return "uninitialised", "error", f"{incident.message}, in program {program}", advice
        case "lanes":
            message = f"lanes of one store write different values to the same element of {name} ({count})"
            return "race", "error", message, "Make the offsets of the store distinct, or mask the duplicates."
        case "undefined" | "harmful":
            zeros = incident.kind == "undefined"
            message = f"masked lanes of this load of {name} have no value, and reach a result in program {program}" + (
                ": right only where the hardware fills them with zeros" if zeros else "; zeros would change it too"
            )
            advice = "Pass other= with the value that leaves the result unchanged, or discard the lanes with tl.where."
            return "undefined", "warning" if zeros else "error", message, advice
        case "outside the view":
            access = {"load": "loads", "store": "stores"}.get(incident.access, "updates")
            message = f"program {program} {access} {name}[{incident.element}], outside the view {name} ({count}): "
            message += "its storage goes on there, so nothing fails"
            # Some kernels mean it: they take the starts of sparse rows, all but the last, and read each and the next.
            weight: Severity = "warning" if incident.access == "load" else "error"
            return "out-of-bounds", weight, message, "Use the strides of the tensor, and mask by its own sizes."
        case "outside the tile":
            tiles, outside = trace.sanitizer.tiles[incident.file, incident.line, incident.access]
            reads = incident.access == "load"
            message = f"{outside:,} of {tiles:,} tiles of this {incident.access} lie wholly outside {name}: " + (
                f"program {program} computes with zeros" if reads else f"program {program} stores nothing"
            )
            severity: Severity = "error" if reads and 2 * outside >= tiles else "warning" if reads else "info"
            advice = "Compare the offsets of the tile with the shape of the descriptor, dimension by dimension."
            return "out-of-bounds", severity, message, advice
        case "unwritten" if incident.access == "atomic":
            message = f"program {program} updates {element}, which nobody has written ({count})"
            return "uninitialised", "error", message, "Initialise the tensor: torch.zeros instead of torch.empty."
        case "unwritten":
            message = f"program {program} loads {element}, which nobody has written ({count})"
            advice = "Initialise the tensor (torch.zeros instead of torch.empty), or mask the load."
            return "uninitialised", "error", message, advice
        case _:
            file, _, line = incident.message.rpartition(":")
            return "overflow", "error", *_overflow(incident.access, program, file, line)


def false_hints(evidence: Evidence) -> Iterator[Finding]:
    """Yield hints to the compiler that traced values contradict: errors where the compiled kernel relies on them."""
    sanitizer = evidence.trace.sanitizer
    for hint in sanitizer.hints.values():
        relying = [
            line
            for (file, line), width in sanitizer.broken.get((hint.file, hint.line), {}).items()
            if any(
                one.line == line and one.file == file and (one.vector_bytes or 0) >= width
                for one in evidence.metrics.accesses
            )
        ]
        harm = hint.name == "tl.assume" or bool(relying)
        message = f"{hint.name} is false in program {hint.program}: {hint.reason}"
        if relying:
            message += f"; the compiled access at line {relying[0]} is too wide for these addresses"
        yield evidence.finding(
            "false-hint", "error" if harm else "warning", message,
            "Remove the hint, or make it true: the compiler believes it.",
            file=hint.file, line=hint.line, program=hint.program,
        )  # fmt: skip


def unwritten_result(kernel: Kernel, writer: tuple[str, str, int], elements: NDArray[np.bool_], call: str) -> Finding:
    """Return the finding about elements that the script reads although no program wrote them."""
    argument, file, line = writer
    count = int(np.count_nonzero(elements))
    first = ", ".join(str(index) for index in np.argwhere(elements)[0]) if elements.ndim else ""
    return Finding(
        "uninitialised", "error",
        f"the script reads {count:,} of {elements.size:,} elements of {argument}, the first at [{first}], in {call}, "
        f"but no program has written them",
        "Launch enough programs to cover the tensor (triton.cdiv rounds up), widen the mask of the store, or "
        "initialise the tensor.", file, line, linecache.getline(file, line).strip(),
    )  # fmt: skip


def late_out_of_bounds(error: OutOfBounds) -> Finding:
    """Return the finding about a program that goes out of bounds, and was not traced."""
    access = error.access
    if access.overflow is not None:
        kind, (message, advice) = "overflow", _overflow(access.kind, access.program, *access.overflow)
    else:
        kind, advice = "out-of-bounds", MASK_OFF
        message = f"program {access.program} does an out-of-bounds {str(error).split(': ', 1)[-1]}"
    code = linecache.getline(access.file, access.line).strip()
    return Finding(kind, "error", message, advice, access.file, access.line, code, access.program)


def _overflow(access: str, program: Program, file: str, line: int | str) -> tuple[str, str]:
    message = f"int32 overflow at {Path(file).name}:{line}: the address of this {access} does not fit 32 bits, "
    return message + f"in program {program}", f"{IN_64_BITS.capitalize()}."


def missing_masks(evidence: Evidence) -> Iterator[Finding]:
    """Yield unmasked blocks that end exactly with their tensor, in kernels that take a size."""
    takes_size = any(
        not parameter.is_constexpr and isinstance(evidence.launched.arguments[parameter.name], int)
        for parameter in evidence.launched.kernel.params
    )
    found = evidence.trace.sanitizer.incidents()
    outside = {(one.file, one.line) for one in found if one.kind in ("out-of-bounds", "overflow")}
    for place in evidence.metrics.places:
        site = evidence.trace.sites[place]
        if (place.file, place.line) in outside:  # said already, with the elements
            continue
        ends_exactly = site.always_full and site.reaches_end and prod(place.shape) > 1 and not site.bounded
        if takes_size and ends_exactly and not _masks_otherwise(place.file, place.line):
            yield evidence.finding(
                "missing-mask", "info",
                f"the {place.kind} of {place.argument} has no mask and ends exactly with the tensor: a size that is "
                "not a multiple of the block would go out of bounds", "Add a mask, or reject such sizes.",
                file=place.file, line=place.line,
            )  # fmt: skip


def _masks_otherwise(file: str, line: int) -> bool:
    """Return whether the line is a branch whose alternative masks its accesses: `if EVEN_K: … else: …`."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp) and node.lineno <= line <= (node.end_lineno or 0):
            branches = [one if isinstance(one, list) else [one] for one in (node.body, node.orelse)]
            others = [one for one in branches if not any(part.lineno <= line <= (part.end_lineno or 0) for part in one)]
            if any(_is_masked_access(one) for branch in others for part in branch for one in ast.walk(part)):
                return True
    return False


def _is_masked_access(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _UNMASKED):
        return False
    named = {"mask", "boundary_check"} & {one.arg for one in node.keywords}
    return bool(named) or len(node.args) > _UNMASKED[node.func.attr]


def overlaps(evidence: Evidence) -> Iterator[Finding]:
    """Yield pairs of arguments that partly share memory while the kernel writes one of them."""
    tensors = evidence.trace.shadows.tensors
    written = {place.argument for place in evidence.metrics.places if place.kind != "load"}
    spans = {name: _span(one) for name, one in tensors.items() if one.numel()}
    names = sorted(spans)
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            (start, end), (other_start, other_end) = spans[first], spans[second]
            interleaved = tensors[first].stride() == tensors[second].stride() and not tensors[first].is_contiguous()
            apart = end <= other_start or other_end <= start or (start, end) == (other_start, other_end) or interleaved
            if not apart and {first, second} & written:
                yield evidence.finding(
                    "overlap", "warning", f"{first} and {second} overlap in memory, and the kernel writes one of them",
                    "Give the output its own memory.", line=evidence.first_line,
                )  # fmt: skip


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the tensor's first address and the address after its last element."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()
