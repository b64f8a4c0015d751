"""Conclusions from a tape alone: the steps that matter, whether kernels or PyTorch compute, and the origin of kernels.

The tape comes from the candidate's process and may be forged. A forged tape is still a program of kernels and
operators: whatever it says is what the replay runs and what the verdict is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilesmith.lab.judge.candidate import Candidate
from tilesmith.lab.judge.replaying.operators import accumulates, kind_of
from tilesmith.lab.judge.task import Rules
from tilesmith.lab.judge.verdict import Reason

MOST_STEPS = 20_000
MOST_STORAGES = 50_000
MOST_SUMS = 8  # of gradients, by autograd, in one backward
_STEP_PARTS: dict[str, type] = {"args": list, "kwargs": dict, "results": list, "arguments": dict}
_PARTS = {"storages", "steps", "kernels", "host_reads", "configurations"}


@dataclass(frozen=True)
class Finding:
    """Something on the tape that decides the outcome. `open` findings make it unproven, others make it fail."""

    reason: Reason
    open: bool = False


def is_well_formed(tape: Any) -> bool:
    """Return whether a tape has the parts that the judge reads."""
    if not isinstance(tape, dict) or set(tape) != _PARTS:
        return False
    lists = [tape[name] for name in ("storages", "steps", "kernels", "host_reads", "configurations")]
    if not all(isinstance(one, list) for one in lists):
        return False
    if not tape["configurations"] or not all(isinstance(one, str) for one in tape["configurations"]):
        return False
    if len(tape["steps"]) > MOST_STEPS or len(tape["storages"]) > MOST_STORAGES:
        return False
    if not all(isinstance(one, dict) for name in ("storages", "steps", "kernels") for one in tape[name]):
        return False
    return all(isinstance(step.get(name, kind()), kind) for step in tape["steps"] for name, kind in _STEP_PARTS.items())


def live_steps(tape: Mapping[str, Any], outputs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the steps that the outputs depend on, in order."""
    needed = {_storage(one) for one in outputs}
    live = []
    for step in reversed(tape["steps"]):
        if "opaque" in step:
            live.append(step)  # nobody knows what it writes
            continue
        touched = _touched(step)
        written = touched if "kernel" in step else {_storage(one) for one in step.get("results") or ()}
        if written & needed:
            needed |= touched | written
            live.append(step)
    return live[::-1]


def mark_steps(tape: Mapping[str, Any], forward_steps: int) -> None:
    """Mark the sums of autograd in the backward, and the operators whose operands depend on no input of this call."""
    sums = 0
    inputs = {number for number, storage in enumerate(tape["storages"]) if storage.get("kind") == "input"}
    for number, step in enumerate(tape["steps"]):
        touched = _touched(step)
        written = touched if "kernel" in step else {_storage(one) for one in step.get("results") or ()}
        depends = bool(touched & inputs)
        is_sum = number >= forward_steps and sums < MOST_SUMS and accumulates(step, tape["storages"])
        sums += is_sum
        step["accumulates"], step["independent"] = is_sum, not depends
        if depends:
            inputs |= written


def findings(
    steps: Sequence[Mapping[str, Any]], tape: Mapping[str, Any], rules: Rules, candidate: Candidate, *, builds: bool
) -> Iterator[Finding]:
    """Yield what the rules say about the live steps of a tape. `builds`: the judge built CUDA kernels for it."""
    for step in steps:
        operator = step.get("operator")
        if isinstance(operator, str) and rules.torch == "movement" and kind_of(step) == "compute":
            yield Finding(
                _reason(
                    step, "torch-computes", f"PyTorch computes {operator}, but the task wants kernels to compute",
                    "Compute it in a kernel. PyTorch may allocate, fill, copy, cast, concatenate and make views.",
                )
            )  # fmt: skip
        if isinstance(operator, str) and not rules.moves and kind_of(step) == "move":
            message = f"PyTorch moves data by {operator}, which this task forbids"
            yield Finding(_reason(step, "torch-computes", message, "Read the tensors as they are, in a kernel."))
    opaque = next((step for step in steps if "opaque" in step), None)
    if opaque is not None:
        advice = "Pass tensors, numbers and constants to kernels, and use names of triton.language in them."
        message = f"{str(opaque['opaque'])[:200]}, which the judge cannot replay"
        yield Finding(_reason(opaque, "not-portable", message, advice), open=True)
    launches = [step for step in steps if "kernel" in step]
    if rules.must_launch and not launches and opaque is None:
        yield Finding(
            Reason(
                "no-launch", "honest", "no kernel launch contributes to the outputs",
                "Launch a kernel that computes the outputs, in every call.",
            )
        )  # fmt: skip
    for step in launches:
        kernel = kernel_of(tape, step)
        odd = _impossible_option(step)
        if odd is not None:
            message = f"a launch with {odd} cannot run on a GPU"
            yield Finding(_reason(step, "launch-option", message, "A program has 1, 2, 4, … or 32 warps."))
        if kernel is None:
            yield Finding(_reason(step, "forged", "a launch names a kernel that the tape does not hold", ""))
        elif _starts_early(step) and not any("gdc_wait(" in str(one.get("text")) for one in tape["kernels"]):
            message = f"kernel {str(kernel.get('name'))[:60]} may start before the launch before it ends (launch_pdl)"
            advice = "Call tl.extra.cuda.gdc_wait() in the kernel before its first access."
            yield Finding(replace(_reason(step, "race", message, advice), stage="safe"))
        elif "cuda" in kernel and not builds:
            yield Finding(_reason(step, "forged", "a launch names a CUDA kernel that the judge did not build", ""))
        elif "cuda" in kernel:
            continue  # the replay knows only kernels that the judge built from the candidate's sources
        elif not rules.generated_kernels and not candidate.defines(str(kernel.get("text"))):
            name = str(kernel.get("name"))[:60]
            message = f"kernel {name} is not in the candidate's files"
            advice = "Write the kernel out in the candidate. Kernels of libraries and generated kernels do not count."
            yield Finding(_reason(step, "foreign-kernel", message, advice))


def _starts_early(step: Mapping[str, Any]) -> bool:
    """Return whether a launch may overlap with the one before, which the interpreter does not do."""
    options = step.get("options")
    return isinstance(options, dict) and bool(options.get("launch_pdl"))


def _impossible_option(step: Mapping[str, Any]) -> str | None:
    """Return an option of a launch that no GPU accepts, which the interpreter would ignore."""
    options = step.get("options")
    given = options if isinstance(options, dict) else {}
    for name, most in (("num_warps", 32), ("num_ctas", 16)):
        value = given.get(name)
        if value is not None and not (type(value) is int and 1 <= value <= most and value & (value - 1) == 0):
            return f"{name}={str(value)[:40]}"
    return None


def kernel_of(tape: Mapping[str, Any], step: Mapping[str, Any]) -> Mapping[str, Any] | None:
    number = step["kernel"]
    known = isinstance(number, int) and 0 <= number < len(tape["kernels"])
    return tape["kernels"][number] if known else None


def _touched(step: Mapping[str, Any]) -> set[Any]:
    """Return the storages of all operands of a step."""
    return {_storage(one) for part in ("arguments", "args", "kwargs") for one in references_in(step.get(part))}


def references_in(value: Any) -> Iterator[Any]:
    """Yield the references of all tensors inside an encoded value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if "tensor" in one:
                if isinstance(one["tensor"], list) and len(one["tensor"]) == 5:
                    yield one["tensor"]
            else:
                waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _storage(reference: Any) -> Any:
    return reference[0] if isinstance(reference, list) and reference and isinstance(reference[0], int) else None


def _reason(step: Mapping[str, Any], kind: str, message: str, advice: str) -> Reason:
    file, _, line = str(step.get("line", "")).rpartition(":")
    return Reason(kind, "honest", message, advice, file=file or None, line=int(line) if line.isdecimal() else None)
