"""What is said to a learner whose file does not get through: where, what happened, and what to think about."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilesmith.lab.inspect.model import Finding
from tilesmith.spec import described
from tilesmith.workshop.attempt import Attempt
from tilesmith.workshop.exercise import Goal
from tilesmith.workshop.goals import Measured

_MOST_REASON = 300
_ONLY_TRITON = (
    "All of a kernel becomes GPU code, so it is made of arithmetic, comparisons, loops and functions of tl; "
    "nothing else of Python or PyTorch is understood there."
)
_FOREIGN = re.compile(r"Unsupported function referenced: <(?:built-in method |function )?(\S+)")
_NOT_TRITON = re.compile(r"not defined|[Uu]nsupported|no attribute|not supported|global variable")
_NO_MEMORY = re.compile(r"tried to allocate (\d+) bytes")


def not_compiled(made: Attempt, file: Path) -> str | None:
    """Why a kernel of this call does not compile; None where all do."""
    for finding in _findings(made, "compile-error"):
        reason = _plain(finding.message)[:_MOST_REASON]
        lesson = f"\n{_ONLY_TRITON}" if _NOT_TRITON.search(reason) else ""
        return f"{_quoted(finding)}{reason}.{lesson}"
    foreign = _FOREIGN.search(str(made.error)) if isinstance(made.error, RuntimeError) else None
    if foreign is not None:
        place = _call_of(foreign[1], file)
        return f"{place}A kernel calls {foreign[1]}, which is no function of Triton's.\n{_ONLY_TRITON}"
    return None


def _call_of(name: str, file: Path) -> str:
    """The line with the first call of a function that is not Triton's; nothing where none is found."""
    call = re.compile(rf"(?<!tl\.)\b{re.escape(name)}\(")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    number = next((number for number, line in enumerate(lines, 1) if call.search(line)), None)
    return "" if number is None else _line(file, number)


def not_run(made: Attempt, file: Path) -> str | None:
    """Why this call does not count as run; None where it does."""
    return next(_reasons(made, file), None)


def _reasons(made: Attempt, file: Path) -> Iterator[str]:
    if made.error is not None:
        yield _raised(made.error, file)
    for finding in _findings(made, "kernel-error"):
        yield _plain(finding.message)
    for finding in (one for kernel in made.kernels for one in kernel.errors):
        yield f"{_quoted(finding)}{finding.message}.\n{finding.advice}"
    if not made.kernels:
        yield (
            "No kernel was launched: the function came back without one. A launch looks like "
            "kernel[grid](arguments), with as many programs as the grid says."
        )
    for kernel in made.kernels:
        if Path(kernel.file) != file:
            yield (
                f"The work is done by {kernel.name}, a kernel from {Path(kernel.file).name}. That one is written "
                "already; this exercise is for your own, in your own file."
            )
    for call in made.torch_calls:
        yield (
            f"{_line(file, call.line)}PyTorch does this part (`{call.name}`). The numbers may be right, but what "
            "the exercise is about is to have the kernel find them: move this into the kernel."
        )
    if not made.outputs:
        yield f"The function returns {made.returned!r} instead of a tensor; does it end with a `return`?"
    yield from _unwritten(made)


def _unwritten(made: Attempt) -> Iterator[str]:
    for output in made.outputs:
        missing = made.written.unwritten(output)
        if len(missing) and len(missing) == output.numel():
            yield (
                "The result does not come from a kernel: none of its elements holds what a kernel stored. The tensor "
                "that is returned has to be the one that the kernel's tl.store writes."
            )
        elif len(missing):
            twice = next((f"\n{_capital(one.message)}." for one in _findings(made, "race")), "")
            yield (
                f"Element {missing[0].tolist()} of the result was not written by any program; {len(missing)} of "
                f"{output.numel()} were not.{twice}\n"
                "Which elements does each program take, and are there programs for all of them?"
            )


def _raised(error: BaseException, file: Path) -> str:
    text = described(error, None)
    asked = _NO_MEMORY.search(text)
    if isinstance(error, MemoryError) or asked:
        size = f" for {int(asked[1]) / 1e9:,.0f} GB" if asked else ""
        return f"Your file asks{size} of memory, which is more than there is: {_place(error, file)}"
    if isinstance(error, SystemExit):
        return f"Your file ends Python with sys.exit: {_place(error, file)}. Leave it out; a check ends by itself."
    return f"{_place(error, file)} raises {text}"


def exception_while_importing(error: BaseException, file: Path) -> str:
    return f"{_raised(error, file)}.\nThis happens before any function is called, while the file is being read."


def missed_goal(goal: Goal, measured: Measured, sizes: str = "") -> str:
    """A goal that was not reached: the figure, where it comes from, on what sizes, and why it matters."""
    where = f" ({measured.where})" if measured.where else ""
    tried = f", on {sizes}" if sizes else ""
    return f"It is right, but {goal.name} is {measured.value:.4g}{where}; wanted {goal.wanted}{tried}.\n{goal.why}"


def with_candidate(candidate: Any) -> str:
    """Which of an autotuner's configurations something was tried with."""
    return f"with the candidate {', '.join(f'{name} = {value}' for name, value in candidate.kwargs.items())}"


def wrong_result(message: str, file: Path) -> str:
    """A wrong element, with the line that stored it."""
    place = re.search(rf"{re.escape(file.name)}:(\d+)", message)
    return f"{_capital(message)}.{'' if place is None else _code(file, int(place[1]))}"


def cached(shared: bool) -> str:
    if shared:
        return (
            "Two calls return the same memory, so the second result overwrites the first one's, which its owner may "
            "still be using. Allocate the output anew in every call."
        )
    return (
        "Called again with other numbers of the same size, the function gives the wrong answer: it seems to remember "
        "an earlier result. Compute it anew in every call."
    )


def _findings(made: Attempt, kind: str) -> Iterator[Finding]:
    return (finding for kernel in made.kernels for finding in kernel.findings if finding.kind == kind)


def _quoted(finding: Finding) -> str:
    return _line(Path(finding.file), finding.line) if finding.line else ""


def _line(file: Path, line: int) -> str:
    return f"{file.name}:{line}{_code(file, line)}\n"


def _code(file: Path, line: int) -> str:
    code = linecache.getline(str(file), line).strip()
    return f"\n    {code}" if code else ""


def _place(error: BaseException, file: Path) -> str:
    """The innermost line of the learner's file that an error came through."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(file):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f"{file.name}:{line}" if line else file.name


def _plain(text: str) -> str:
    """A message with files by their names, and without what only the machine needs."""
    return re.sub(r"/\S*/([\w.]+\.py)", r"\1", " ".join(text.split()))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
