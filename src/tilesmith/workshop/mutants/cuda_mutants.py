"""Mutants of a CUDA file: one mistake of a learner each, made by patterns in the text of the model solution."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilesmith.workshop.mutants.mutant import Edit, Mutant, mutants_of

# The kind of mistake, the text that it is made in, and the new text (as in re.sub).
_MISTAKES: tuple[tuple[str, str, str], ...] = (
    ("drop-barrier", r"__syncthreads\(\);", ";"),
    ("drop-clear", r"cudaMemset\([^;]*\);", ";"),
    ("drop-eps", r" \+ epsilon\b", ""),
    ("drop-sizeof", r"\* sizeof\(float\)", ""),
    ("drop-condition", r"(\w+ < \w+) && (\w+ < \w+)", r"\1"),
    ("drop-condition", r"(\w+ < \w+) && (\w+ < \w+)", r"\2"),
    ("drop-condition", r"\bif \([^()]*\)", "if (true)"),
    ("bound", r"(?<=\w) < (?=\w)", " <= "),
    ("bound", r"(?<=\w < )(\w+)\b", r"\1 - 1"),
    ("bound", r"(?<=\w) > 0\b", " >= 1 - 1"),
    ("bound", r"(?<=\w) > 0\b", " > 1"),
    ("grid", r"\((\w+) \+ \w+ - 1\) / (\w+)", r"\1 / \2"),
    ("grid", r"<<<(\w+), ", r"<<<\1 - 1, "),
    ("grid", r"<<<(\w+), (\w+)>>>", r"<<<\2, \1>>>"),
    ("axis", r"\b((?:thread|block)Idx|blockDim)\.x\b", r"\1.y"),
    ("axis", r"\b((?:thread|block)Idx|blockDim)\.y\b", r"\1.x"),
    ("axis", r"\[([\w.]+)\]\[([\w.]+)\]", r"[\2][\1]"),
    ("axis", r"\brows\b(?=[^;{]*;)", "columns"),
    ("axis", r"\bcolumns\b(?=[^;{]*;)", "rows"),
    ("drop-accumulator", r"(?<=[\w\]]) \+= ", " = "),
    ("drop-atomic", r"atomicAdd\((\w+), ([^;]*)\);", r"*\1 += \2;"),
    ("padding", r"(?<=: )0\.0f", "1.0f"),
    ("padding", r"(?<=\w) \+ 1\]", "]"),
    ("operation", r"(?<=[\w\])]) \+ (?=[\w(])", " - "),
    ("operation", r"(?<=[\w\])]) \* (?=[\w(])", " + "),
    ("operation", r"(?<=[\w\])]) / (?=[\w(])", " * "),
    ("drop-factor", r" \* [\w.]+(?:\[\w+\])?", ""),
    ("loop", r"(?<= = )(\w+) / 2;", r"\1;"),
    ("loop", r"(?<= = )(\w+) / 2;", r"\1 / 4;"),
    ("loop", r"/= 2", "/= 4"),
    ("sign", r"(?<=\()-(?=\w)", ""),
    ("function", r"\brsqrtf\b", "sqrtf"),
    ("function", r"\bexpf\b", "exp2f"),
    ("offset", r"\[(\w+)\]", r"[\1 + 1]"),
    ("swap", r"(?<=[(,] )(\w+), (\w+)(?=[,)])", r"\2, \1"),
)


def cuda_mutants(source: str) -> list[Mutant]:
    """Return every mutant of a CUDA file."""
    return list(mutants_of(source, _edits(source)))


def _edits(source: str) -> Iterator[Edit]:
    # Comments keep their length, so that places stay the same; signatures and includes are not changed.
    code = re.sub(r"//[^\n]*|#[^\n]*|^[^\n]*\{$(?<=\) \{)", _blank_signature, source, flags=re.MULTILINE)
    for kind, pattern, new in _MISTAKES:
        for found in re.finditer(pattern, code):
            start, end = (len(source[:place].encode()) for place in found.span())
            yield Edit(kind, start, end, found.expand(new))


def _blank_signature(found: re.Match[str]) -> str:
    text = found[0]
    is_code = text[:1].isspace() and not text.lstrip().startswith(("//", "#"))  # an `if` or a loop, not a function
    return text if is_code else " " * len(text)
