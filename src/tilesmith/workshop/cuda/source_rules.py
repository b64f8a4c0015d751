"""Mistakes that a C++ compiler accepts: which functions run on the GPU, who may call them, and which return nothing.

A C++ compiler without CUDA ignores `__global__` and `__device__`. So these rules read the text of the file. nvcc
only warns of a function without a return, and refuses all other mistakes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

# Brackets may be nested twice, as in `void f(float (&tile)[32], int n)`.
_PARAMETERS = r"\((?:[^(){};]|\((?:[^(){};]|\([^(){};]*\))*\))*\)"
_FUNCTION = re.compile(rf"\b(\w+)\s*{_PARAMETERS}\s*(?:const\s*|noexcept\s*)*(?=[{{;])")
_LAUNCHED = re.compile(r"\b(\w+)\s*(?:<[^<>;]*>\s*)?<<<")
_CALLED = re.compile(r"(?<![\w.])(?<!->)((?:std::)?\w+)\s*(?:<[\w\s,*:]*>\s*)?(?=[(\[])")
_TEXT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)
_OPENS_NO_SCOPE = re.compile(r"(?:namespace(?:\s+\w+)?|extern\s*\"[^\"]*\")\s*$")
_ONLY_ON_GPU = re.compile(r"__syncthreads|__syncwarp|atomic[A-Z]\w+|__shfl\w*_sync|__ballot_sync|__ldg")
_ONLY_ON_HOST = re.compile(
    r"cuda(?:Malloc|Free|Memcpy|Memset|Stream|Event|Device|GetLastError|PeekAtLastError)\w*"
    r"|std::(?:max|min|swap|clamp|accumulate|fill|sort|copy|vector|string)"
)
_INSTEAD = "The GPU's own functions have no std:: (max, min, fmaxf), and the host allocates and copies memory."
_RESULT = re.compile(r"\b(?:float[24]?|double|int[24]?|unsigned|long|bool|size_t|cudaError_t)\s*$")
_NO_FUNCTIONS = frozenset({"if", "for", "while", "switch", "return", "sizeof", "alignas", "catch", "__launch_bounds__"})


@dataclass(frozen=True)
class Mistake:
    """A line of a file and what is wrong there."""

    line: int
    message: str


@dataclass(frozen=True)
class Function:
    """A function that the file defines or declares; `body` is the place of its statements in the text."""

    name: str
    before: str
    position: int
    body: tuple[int, int] | None

    @property
    def is_kernel(self) -> bool:
        return "__global__" in self.before

    @property
    def runs_on_gpu(self) -> bool:
        return self.is_kernel or "__device__" in self.before

    @property
    def runs_on_host(self) -> bool:
        return not self.runs_on_gpu or "__host__" in self.before


def without_comments(source: str) -> str:
    """Return a source with blanks in place of comments: every other character stays where it is."""
    return _TEXT.sub(lambda found: _blank(found[0]) if found[0].startswith("/") else found[0], source)


def first_mistake(source: str) -> Mistake | None:
    """Return the first mistake; None if there is none."""
    text = _TEXT.sub(lambda found: _blank(found[0]), source)
    starts = [0, *(one.end() for one in re.finditer("\n", text))]
    found = next(_mistakes(text), None)
    return None if found is None else Mistake(bisect_right(starts, found[0]), found[1])


def host_signature(source: str) -> str:
    """Return the first line of the last function for the host: the one that the harness of an exercise calls."""
    text = _TEXT.sub(lambda found: _blank(found[0]), source)
    last = [one for one in _functions(text) if one.body is not None and one.runs_on_host][-1]
    assert last.body is not None
    return " ".join(f"{last.before}{text[last.position : last.body[0]]}".split())


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _mistakes(text: str) -> Iterator[tuple[int, str]]:
    unclosed = _unclosed_brace(text)
    if unclosed is not None:
        yield unclosed, "The { of this line has no }. Count the braces from here to the next function."
        return
    functions = list(_functions(text))
    kernels = {one.name for one in functions if one.is_kernel}
    launched = {one[1] for one in _LAUNCHED.finditer(text)}
    for one in functions:
        right = f"__global__ void {one.name}(…)"
        if one.name in launched - kernels:
            yield one.position, f"Only a kernel can be launched with <<<…>>>, and a kernel is marked: write {right}."
        if one.is_kernel and not re.search(r"\b(?:void|auto)\b", one.before):
            yield one.position, f"A kernel returns nothing, and writes its results to memory: write {right}."
        if _RESULT.search(one.before) and one.body and not re.search(r"\breturn\b", text[slice(*one.body)]):
            yield one.position, f"{one.name} has a result, but no return. Write return …; at the end of its braces."
    for one in functions:
        if one.body is not None:
            yield from _mistaken_calls(text, one, functions)


def _mistaken_calls(text: str, caller: Function, functions: list[Function]) -> Iterator[tuple[int, str]]:
    """Yield the calls in a function's body that nvcc refuses."""
    assert caller.body is not None
    gpu = {one.name for one in functions if one.runs_on_gpu}
    host = {one.name for one in functions if one.runs_on_host}
    kernels = {one.name for one in functions if one.is_kernel}
    for call in _CALLED.finditer(text, *caller.body):
        name = call[1]
        if name in kernels:
            reason = f"A kernel is launched, not called like a function. Write {name}<<<blocks, threads>>>(…)."
        elif caller.runs_on_gpu and name in host - gpu:
            reason = f"A kernel cannot call a function of the host. Write __device__ in the line that defines {name}."
        elif caller.runs_on_gpu and _ONLY_ON_HOST.fullmatch(name):
            reason = f"A kernel cannot call {name}, a function of the host. {_INSTEAD}"
        elif not caller.runs_on_gpu and (name in gpu - host or _ONLY_ON_GPU.fullmatch(name)):
            reason = f"{name} is a function of the GPU, and {caller.name} runs on the host. Call {name} in a kernel."
        else:
            continue
        yield call.start(1), reason


def _functions(text: str) -> Iterator[Function]:
    """Yield the functions outside of classes, without those of a macro or constexpr: both sides may call these."""
    macros = set(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.MULTILINE))
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda found: _blank(found[0]), text, flags=re.MULTILINE)
    depth_at = list(_depths(code))
    for found in _FUNCTION.finditer(code):
        start = max(code.rfind(end, 0, found.start()) for end in ";{}") + 1
        before = code[start : found.start()]
        words = set(re.findall(r"\w+", before))
        if not words or found[1] in _NO_FUNCTIONS or depth_at[found.start()]:
            continue
        if (
            words & (macros | {"constexpr", "consteval", "return", "new", "class", "struct", "enum", "using"})
            or "=" in before
        ):
            continue
        body = None
        if code[found.end()] == "{":
            depth = depth_at[found.end()]
            ends = (at for at in range(found.end() + 1, len(code)) if code[at] == "}" and depth_at[at] == depth)
            body = (found.end(), next(ends, len(code)))
        yield Function(found[1], before, found.start(1), body)


def _depths(code: str) -> Iterator[int]:
    """Yield for each character how many braces are around it; those of namespaces do not count, nor does itself."""
    opened: list[bool] = []
    depth = 0
    for at, character in enumerate(code):
        if character == "}" and opened:
            depth -= opened.pop()
        yield depth
        if character == "{":
            opened.append(not _OPENS_NO_SCOPE.search(code[max(at - 80, 0) : at]))
            depth += opened[-1]


def _unclosed_brace(text: str) -> int | None:
    opened = []
    for found in re.finditer("[{}]", text):
        if found[0] == "{":
            opened.append(found.start())
        elif opened:
            opened.pop()
    return opened[0] if opened else None
