"""The messages for a learner whose file fails a stage: the line, what happened, and what to think about."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tilesmith.lab.errors import did_you_mean, explain, first_missing_brackets
from tilesmith.lab.inspect.model import Finding
from tilesmith.spec import Inputs, described
from tilesmith.toolchain.interpreter import KernelError
from tilesmith.toolchain.interpreter.driver import CompiledStandIn
from tilesmith.workshop.checking.goals import Measured
from tilesmith.workshop.checking.traced_call import TracedCall
from tilesmith.workshop.course.exercise import Goal

_MOST_REASON = 300
_ONLY_TRITON = (
    "The whole kernel becomes GPU code. Inside a kernel, use arithmetic, comparisons, loops and functions of tl; "
    "Triton does not understand other Python or PyTorch there."
)
_FOREIGN = re.compile(r"Unsupported function referenced: <(?:built-in method |function )?(\S+)")
_NOT_TRITON = re.compile(r"not defined|[Uu]nsupported|no attribute|not supported|global variable")
_FOREIGN_CALL = re.compile(r"(?<![\w.])(torch|np|numpy|math)\.\w+\(")
_ALONE = "If this module is a file of yours: the check runs a copy of this file alone, so put the code into this file."
_ARGUMENTS = re.compile(r"\w+\(\) (missing|takes|got an unexpected)")
_NO_MEMORY = re.compile(r"tried to allocate (\d+) bytes")


def not_compiled(call: TracedCall, file: Path) -> str | None:
    """Return why a kernel of this call does not compile; None where all do."""
    for finding in _findings(call, "compile-error"):
        reason = _plain(finding.message)[:_MOST_REASON].removesuffix(".")
        known = explain(finding.message, finding.code)
        is_foreign = _NOT_TRITON.search(reason) or _FOREIGN_CALL.search(finding.code or "")
        lesson = known.text if known else _ONLY_TRITON if is_foreign else ""
        meant = did_you_mean(finding.message, file.read_text(encoding="utf-8", errors="replace"))
        return f"{_quoted(finding)}{reason}.\n{' '.join(filter(None, [meant, lesson]))}".rstrip()
    foreign = _FOREIGN.search(str(call.error)) if isinstance(call.error, RuntimeError) else None
    if foreign is not None:
        place = _call_of(foreign[1], file)
        return f"{place}A kernel calls {foreign[1]}, which is not a Triton function.\n{_ONLY_TRITON}"
    return None


def _call_of(name: str, file: Path) -> str:
    """Return the line of the first call of a function that is not Triton's; "" where there is none."""
    call = re.compile(rf"(?<!tl\.)\b{re.escape(name)}\(")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    number = next((number for number, line in enumerate(lines, 1) if call.search(line)), None)
    return "" if number is None else _line(file, number)


def not_run(call: TracedCall, file: Path) -> str | None:
    """Return why this call fails the stage "runs"; None where it passes."""
    return next(_reasons(call, file), None)


def _reasons(call: TracedCall, file: Path) -> Iterator[str]:
    if call.error is not None:
        yield _raised(call.error, file)
    for finding in _findings(call, "kernel-error"):
        known = explain(finding.message, finding.code)
        yield _plain(finding.message) + (f".\n{known.text}" if known else "")
    # Masked lanes without `other` fail even where zeros are right: a GPU promises no zeros.
    for finding in (*(one for kernel in call.kernels for one in kernel.errors), *_findings(call, "undefined")):
        yield f"{_quoted(finding)}{finding.message}.\n{finding.advice}"
    if call.empty_grid is not None:
        name, grid = call.empty_grid
        yield (
            f"{name} is launched with the grid {grid}, so with no program: nothing runs. `//` rounds down, to 0 where "
            "the size is smaller than the block. triton.cdiv rounds up."
        )
    elif not call.kernels:
        yield (
            "No kernel was launched: the function returned without launching one. A launch looks like "
            "kernel[grid](arguments), where the grid is the number of programs."
        )
    for kernel in call.kernels:
        if Path(kernel.file) != file:
            yield (
                f"The kernel {kernel.name} from {Path(kernel.file).name} does the work. In this exercise, write "
                "your own kernel in your own file."
            )
    for torch_call in call.torch_calls:
        reason = (
            f"This exercise forbids `{torch_call.name}`: its kernel must load and store the tensors as they are."
            if torch_call.forbidden
            else f"PyTorch does this part (`{torch_call.name}`). The numbers may be right, but in this exercise the "
            "kernel must compute them. Move this part into the kernel."
        )
        yield f"{_line(file, torch_call.line)}{reason}"
    if isinstance(call.returned, CompiledStandIn):
        yield "The function returns what the launch returns. Return the tensor that the kernel's tl.store writes."
    elif not call.outputs:
        yield f"The function returns {call.returned!r} instead of a tensor. Does it end with a `return`?"
    yield from _unwritten(call)


def torch_call_for_other_sizes(file: Path, line: int, name: str) -> str:
    """Return the message for arithmetic by PyTorch on a line that the tried sizes do not reach."""
    return (
        f"{_line(file, line)}PyTorch does this part (`{name}`) at sizes that the check does not try. In this exercise "
        "the kernel must compute every size. Move this part into the kernel."
    )


def _unwritten(call: TracedCall) -> Iterator[str]:
    for output in call.outputs:
        missing = call.stored.unwritten(output)
        store = call.stored.masked_off(output, missing) if len(missing) else None
        if len(missing) and len(missing) == output.numel() and store is None:
            yield (
                "The result does not come from a kernel: no element holds a value that a kernel stored. Return the "
                "tensor that the kernel's tl.store writes."
            )
        elif len(missing):
            twice = next((f"\n{_capital(one.message)}." for one in _findings(call, "race")), "")
            question = (
                "Which elements does each program handle? Are there enough programs for all elements?"
                if store is None
                else f"{_line(Path(store.file), store.line)}Program {store.program} has this address, but the mask of "
                "the store is False there. Look at the comparison that makes the mask, and at its brackets."
            )
            yield (
                f"Element {missing[0].tolist()} of the result was not written by any program; {len(missing)} of "
                f"{output.numel()} elements were not written.{twice}\n{question}"
            )


def _raised(error: BaseException, file: Path) -> str:
    text = _without_folders(described(error, None))
    asked = _NO_MEMORY.search(text)
    if isinstance(error, MemoryError) or asked:
        size = f" for {int(asked[1]) / 1e9:,.0f} GB" if asked else ""
        return f"Your file asks{size} of memory, more than this machine has: {_place(error, file)}"
    if isinstance(error, SystemExit):
        return f"Your file ends Python with sys.exit: {_place(error, file)}. Remove this call."
    place = _place(error, file)
    if isinstance(error, TypeError) and ":" not in place and _ARGUMENTS.search(text):
        return f"{text}.\nThe check calls this function with the arguments of the starter. Restore its first line."
    code = linecache.getline(str(file), int(place.rpartition(":")[2])) if ":" in place else ""
    known = explain(text, code, in_kernel=isinstance(error, KernelError))
    meant = did_you_mean(text, file.read_text(encoding="utf-8", errors="replace"))
    alone = _ALONE if isinstance(error, ModuleNotFoundError) else ""
    lesson = " ".join(filter(None, [meant, known.text if known else "", alone]))
    return f"{place} raises {text}" + (f".\n{lesson}" if lesson else "")


def exception_while_importing(error: BaseException, file: Path) -> str:
    """Return the message for a file that raises while Python imports it."""
    raised = _raised(error, file).removesuffix(".")
    return f"{raised}.\nThis happens while Python imports the file, before any function is called."


def exception_while_running(error: BaseException, file: Path) -> str:
    """Return the message for a program that raises, or whose result the check cannot use."""
    return _raised(error, file)


def raised_again(error: BaseException, file: Path) -> str:
    """Return the message for a function that raises in a later call with inputs of the same size."""
    return f"The first call works, but a later call with other numbers of the same size fails: {_raised(error, file)}"


def missed_goal(goal: Goal, measured: Measured, sizes: str = "") -> str:
    """Return the message for a missed goal: the value, its place, the sizes, and why the goal matters."""
    where = f" ({measured.where})" if measured.where else ""
    tried = f", on {sizes}" if sizes else ""
    return (
        f"The result is right, but {goal.name} is {measured.value:.4g}{where}; wanted {goal.wanted}{tried}.\n{goal.why}"
    )


def with_candidate(candidate: Any) -> str:
    """Return the configuration of an autotuner as text."""
    return f"with the candidate {', '.join(f'{name} = {value}' for name, value in candidate.kwargs.items())}"


def wrong_result(what: str, message: str, file: Path) -> str:
    """Return the message for a wrong element, with the line that stored it.

    `what` is "forward", "forward 1" for the second of several results, or "gradient x".
    """
    message = message.replace(str(file), file.name)
    place = re.search(rf"{re.escape(file.name)}:(\d+)", message)
    kind, _, name = what.partition(" ")
    if kind == "gradient" and message.startswith("no gradient reaches"):
        return (
            f"The result is right, but no gradient reaches {name}. Autograd knows a torch.autograd.Function only if it "
            "is called by `.apply`, and its backward returns one gradient for each input."
        )
    start = f"The result is right, but the gradient of {name} is wrong. " if kind == "gradient" else ""
    result = f"result {int(name) + 1}" if kind == "forward" and name else ""
    if message.startswith(("has ", "is ")):
        message = f"{result or 'the result'} {message}"
    elif message.startswith("element [") and result:
        message = message.replace("]", f"] of {result}", 1)
    return f"{start}{_capital(message).removesuffix('.')}.{'' if place is None else _code(file, int(place[1]))}"


def brackets(file: Path) -> str:
    """Return a hint at the first mask that lacks brackets; "" where none does."""
    line = first_missing_brackets(file.read_text(encoding="utf-8", errors="replace"))
    if line is None:
        return ""
    return (
        f"\n{file.name}:{line}{_code(file, line)}\n& and | are evaluated before comparisons. Put brackets around each "
        "comparison: (x > 0) & (x < 3)."
    )


def origin_of_nan(place: tuple[str, int] | None) -> str:
    """Return the line on which a stored NaN was computed; "" where it is unknown."""
    if place is None:
        return ""
    file, line = Path(place[0]), place[1]
    return f"\nThe NaN is born on {file.name}:{line}{_code(file, line)}"


def left_on_cpu(what: str, inputs: Inputs) -> str:
    """Return the message for a tensor that a call with inputs on a GPU would allocate on the CPU."""
    like = _first_tensor(inputs)
    return (
        f"With {like} on a GPU, {what} would be on the CPU, where no kernel of the GPU can reach it: torch.empty and "
        f"the like allocate on the CPU unless you name a device. Write device={like}.device, or use torch.empty_like."
    )


def dtype_of_result(made: Sequence[torch.dtype], wanted: Sequence[torch.dtype], inputs: Inputs) -> str:
    """Return the message for results that keep their dtype where the inputs have another one, float16."""
    like = _first_tensor(inputs)
    number = next(number for number, pair in enumerate(zip(made, wanted, strict=True)) if pair[0] != pair[1])
    result = f"result {number + 1}" if len(made) > 1 else "the result"
    return (
        f"For inputs in float16, {result} would be in {str(made[number]).removeprefix('torch.')}, but must be in "
        f"{str(wanted[number]).removeprefix('torch.')}: torch.empty and the like allocate float32 unless you name "
        f"a dtype. Write dtype={like}.dtype, or use torch.empty_like."
    )


def _first_tensor(inputs: Inputs) -> str:
    return next((name for name, value in inputs.items() if isinstance(value, torch.Tensor)), "x")


def cached(shared: bool) -> str:
    """Return the message for a function that reuses an earlier call's memory (`shared`) or an earlier result."""
    if shared:
        return (
            "Two calls return the same memory, so the second result overwrites the first, which may still be in use. "
            "Allocate a new output in every call."
        )
    return (
        "The second call, with other numbers of the same size, gives a wrong result. The function seems to return an "
        "earlier result. Compute the result in every call."
    )


def gradient_of_another_call() -> str:
    """Return the message for a backward that uses what a later forward has saved."""
    return (
        "After two calls, the gradient of the first one is wrong: its backward uses what the second call saved. A "
        "model calls a layer many times before the backward. Keep tensors in ctx, with ctx.save_for_backward."
    )


def order_matters() -> str:
    """Return the message for a result that is wrong when the programs run in another order."""
    return (
        "The result is wrong when the last program runs first. A GPU runs programs in any order and many at the same "
        "time, so no program may rely on what another program of the same launch has already done. Where a program "
        "needs the result of others, use a second launch."
    )


def _findings(call: TracedCall, kind: str) -> Iterator[Finding]:
    return (finding for kernel in call.kernels for finding in kernel.findings if finding.kind == kind)


def _quoted(finding: Finding) -> str:
    return _line(Path(finding.file), finding.line) if finding.line else ""


def _line(file: Path, line: int) -> str:
    return f"{file.name}:{line}{_code(file, line)}\n"


def _code(file: Path, line: int) -> str:
    code = linecache.getline(str(file), line).strip()
    return f"\n    {code}" if code else ""


def _place(error: BaseException, file: Path) -> str:
    """Return the innermost line of the learner's file in an error's traceback."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(file):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f"{file.name}:{line}" if line else file.name


def _plain(text: str) -> str:
    """Return a message on one line, with file names instead of paths."""
    return _without_folders(" ".join(text.split()))


def _without_folders(text: str) -> str:
    return re.sub(r"/\S*/([\w.]+\.py)", r"\1", text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
