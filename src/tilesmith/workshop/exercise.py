"""An exercise as its author wrote it: `exercise.toml` and what lies beside it, read and checked.

`docs/workshop-authors.md` says what each key means.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

# Python 3.10 has no reader of its own.
_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

STAGES = ("parses", "compiles", "runs", "right", "goals", "nvcc", "speed")
_FAILS_AT = "fails:"


class ExerciseError(Exception):
    """An exercise that is not as it must be; the message is one line for its author."""


@dataclass(frozen=True)
class Size:
    """One size to try: the sizes by name, as the exercise's `make_inputs` reads them from a case."""

    name: str
    sizes: Mapping[str, int]


NOWHERE = Size("", {})


@dataclass(frozen=True)
class Goal:
    """What a metric of `goals.py` must come to. `why` is told to those who miss it; `size` is the name of the size that
    it is measured on, the exercise's measured one where it is None."""

    metric: str
    why: str
    at_most: float | None = None
    at_least: float | None = None
    argument: str | None = None
    target: str = "cuda:90"
    size: str | None = None

    @property
    def name(self) -> str:
        return f"{self.metric} of {self.argument}" if self.argument else self.metric

    @property
    def wanted(self) -> str:
        bounds = {"≤": self.at_most, "≥": self.at_least}
        if self.at_most == self.at_least:
            return f"= {self.at_most:g}"
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)

    def met_by(self, value: float) -> bool:
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)


@dataclass(frozen=True)
class Sweep:
    """A table to be filled in: a constant of the learner's file, the values to try, and a metric for each column."""

    constant: str
    values: tuple[int, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Misstep:
    """A wrong answer that many give: the function of `quiz.py` that computes it, and what to say to them."""

    answer: str
    reply: str


@dataclass(frozen=True)
class Question:
    """A number to predict. `answer` is a function of `quiz.py`; `worked` an expression that must come to the same."""

    question: str
    answer: str
    reply: str
    worked: str | None = None
    between: tuple[float, float] | None = None
    within: float = 0.0  # how far off a guess may be, as a share of the answer
    wrong: tuple[Misstep, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """One exercise. `function` is the learner's, and stands in the spec as the operator; one with `is_cuda` has a `.cu`
    file and a harness instead, and may have a Triton exercise as `twin`, to be timed beside. Without either there is
    no file to write, and the exercise is its questions."""

    folder: Path
    id: str
    title: str
    track: str
    needs: tuple[str, ...]
    starter_fails: str
    is_cuda: bool = False
    twin: str | None = None
    function: str = ""
    visible: tuple[Size, ...] = ()
    hidden: tuple[Size, ...] = ()
    measured: Size = NOWHERE
    timed: tuple[Size, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    layouts: tuple[str, ...] = ("contiguous",)
    differentiable: bool = False
    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    sweep: Sweep | None = None
    hints: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()

    def size(self, name: str | None) -> Size:
        """One of its sizes by name; the measured one by default."""
        return next((one for one in (*self.visible, *self.hidden) if one.name == name), self.measured)

    @property
    def is_only_questions(self) -> bool:
        return not self.function and not self.is_cuda

    def stages_until(self, last: str) -> list[str]:
        """What a check of it has gone through up to a stage; only programs in CUDA are compiled with nvcc."""
        return [stage for stage in STAGES[: STAGES.index(last) + 1] if self.is_cuda or stage != "nvcc"]

    @property
    def suffix(self) -> str:
        """What the names of its programs end in."""
        return ".cu" if self.is_cuda else ".py"

    @property
    def file_name(self) -> str:
        """What the learner's file is called: messages name it, so it says which exercise it belongs to."""
        return f"{self.id.replace('-', '_')}{self.suffix}"

    @property
    def starter(self) -> Path:
        return self.folder / f"starter{self.suffix}"

    @property
    def solution(self) -> Path:
        return self.folder / f"solution{self.suffix}"

    @property
    def page(self) -> Path:
        return self.folder / "page.md"

    @property
    def wrong_variants(self) -> tuple[Path, ...]:
        return tuple(sorted((self.folder / "wrong").glob(f"*{self.suffix}")))


@dataclass(frozen=True)
class Expectation:
    """Where a wrong variant must fail, and words that the message must hold."""

    stage: str
    words: str = ""


def expectation_of(variant: Path) -> Expectation:
    """What the first line of a wrong variant says: `# fails: runs (out of bounds)`, in CUDA with `//`."""
    comment = "// " if variant.suffix == ".cu" else "# "
    first = variant.read_text(encoding="utf-8").partition("\n")[0]
    stage, _, words = first.removeprefix(comment + _FAILS_AT).strip().partition(" ")
    if not first.startswith(comment + _FAILS_AT) or stage not in STAGES:
        raise ExerciseError(
            f"{variant}: the first line must be `{comment}{_FAILS_AT} STAGE (words)`, STAGE one of {STAGES}"
        )
    return Expectation(stage, words.strip().removeprefix("(").removesuffix(")"))


def load(folder: Path) -> Exercise:
    """Reads the exercise in a folder. Everything that can be wrong with it becomes one clear line."""
    path = folder / "exercise.toml"
    try:
        content = _toml.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExerciseError(f"{folder}: there is no exercise.toml in it") from None
    except (OSError, ValueError) as error:
        raise ExerciseError(f"{path}: {error}") from None
    exercise = _read(_Table(content, str(path)), folder)
    needed = [exercise.page]
    if not exercise.is_only_questions:
        needed += [exercise.starter, exercise.solution, folder / ("harness.cu" if exercise.is_cuda else "meaning.py")]
    needed += [folder / "quiz.py"] if exercise.questions or exercise.is_only_questions else []
    for file in needed:
        if not file.is_file():
            raise ExerciseError(f"{folder}: there is no {file.name} in it")
    if exercise.twin is not None and not (folder.parent / exercise.twin / "exercise.toml").is_file():
        raise ExerciseError(f"{path}: its twin is {exercise.twin!r}, which is no exercise beside it")
    for variant in exercise.wrong_variants:
        expectation_of(variant)
    return exercise


class _Table:
    """A table of the file: every key is asked for with its type, and those that nobody asks for are refused."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self._content = dict(content)
        self.where = where

    def take(self, key: str, kind: type | UnionType, default: Any = None, *, needed: bool = False) -> Any:
        if key not in self._content:
            if needed:
                raise ExerciseError(f"{self.where}: {key!r} is missing")
            return default
        value = self._content.pop(key)
        value = float(value) if kind is float and isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(value, kind):
            raise ExerciseError(f"{self.where}: {key!r} is {value!r}, which is not a {getattr(kind, '__name__', kind)}")
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        values = self.take(key, list, list(default))
        for value in values:
            if not isinstance(value, str):
                raise ExerciseError(f"{self.where}: {key!r} holds {value!r}, which is not a text")
        return tuple(values)

    def tables(self, key: str) -> list[_Table]:
        return [_Table(one, f"{self.where}: {key} {number}") for number, one in enumerate(self.take(key, list, []), 1)]

    def rest(self) -> dict[str, Any]:
        left, self._content = self._content, {}
        return left

    def done(self) -> None:
        if self._content:
            raise ExerciseError(f"{self.where}: nothing is called {', '.join(map(repr, self._content))} here")


def _read(table: _Table, folder: Path) -> Exercise:
    spec, cuda = table.take("spec", dict), table.take("cuda", dict)
    exercise = Exercise(
        folder=folder,
        id=table.take("id", str, needed=True),
        title=table.take("title", str, needed=True),
        track=table.take("track", str, needed=True),
        needs=table.texts("needs"),
        starter_fails=table.take("starter_fails", str, "parses"),
        is_cuda=cuda is not None,
        twin=_twin(_Table(cuda or {}, f"{table.where}: cuda")),
        goals=tuple(map(_goal, table.tables("goals"))),
        sweep=_sweep(table),
        hints=table.texts("hints"),
        questions=tuple(map(_question, table.tables("quiz"))),
        **({} if spec is None else _meaning(_Table(spec, f"{table.where}: spec"), table)),
    )
    table.done()
    if exercise.id != folder.name:
        raise ExerciseError(f"{table.where}: its id is {exercise.id!r}, but its folder is called {folder.name!r}")
    if exercise.starter_fails not in STAGES:
        raise ExerciseError(f"{table.where}: starter_fails is {exercise.starter_fails!r}, but stages are {STAGES}")
    named = {size.name for size in (*exercise.visible, *exercise.hidden)}
    for goal in exercise.goals:
        if goal.size is not None and goal.size not in named:
            raise ExerciseError(f"{table.where}: the goal {goal.name} is on {goal.size!r}, which is no size")
    if exercise.is_only_questions and not exercise.questions:
        raise ExerciseError(f"{table.where}: there is neither a spec nor a question")
    return exercise


def _twin(cuda: _Table) -> str | None:
    twin: str | None = cuda.take("twin", str)
    cuda.done()
    return twin


def _meaning(spec: _Table, table: _Table) -> dict[str, Any]:
    """What is to be computed, and on what sizes."""
    visible = tuple(map(_size, table.tables("visible")))
    hidden = tuple(map(_size, table.tables("hidden")))
    if not visible or not hidden:
        raise ExerciseError(f"{table.where}: there must be visible and hidden sizes")
    by_name = {size.name: size for size in (*hidden, *visible)}
    if len(by_name) < len(visible) + len(hidden):
        raise ExerciseError(f"{table.where}: two sizes have the same name")
    measured = spec.take("measured", str, visible[0].name)
    if measured not in by_name:
        raise ExerciseError(f"{spec.where}: measured is {measured!r}, but the sizes are {', '.join(by_name)}")
    meaning = {
        "function": spec.take("function", str, needed=True),
        "visible": visible,
        "hidden": hidden,
        "measured": by_name[measured],
        "timed": tuple(_timed(spec)),
        "dtypes": spec.texts("dtypes", ("float32",)),
        "layouts": spec.texts("layouts", ("contiguous",)),
        "differentiable": spec.take("differentiable", bool, False),
        "allow": spec.texts("allow"),
        "forbid": spec.texts("forbid"),
    }
    spec.done()
    return meaning


def _timed(spec: _Table) -> Iterator[Size]:
    """One table of sizes, or several."""
    given = spec.take("timed", list | dict, [])
    for number, sizes in enumerate([given] if isinstance(given, dict) else given, 1):
        yield Size(f"timed {number}", sizes)


def _size(table: _Table) -> Size:
    return Size(table.take("name", str, needed=True), table.rest())


def _goal(table: _Table) -> Goal:
    goal = Goal(
        metric=table.take("metric", str, needed=True),
        why=table.take("why", str, needed=True),
        at_most=table.take("at_most", float),
        at_least=table.take("at_least", float),
        argument=table.take("argument", str),
        target=table.take("target", str, "cuda:90"),
        size=table.take("size", str),
    )
    table.done()
    if goal.at_most is None and goal.at_least is None:
        raise ExerciseError(f"{table.where}: give it at_most, at_least or both")
    return goal


def _sweep(table: _Table) -> Sweep | None:
    content = table.take("sweep", dict)
    if content is None:
        return None
    inner = _Table(content, f"{table.where}: sweep")
    sweep = Sweep(
        inner.take("constant", str, needed=True),
        tuple(inner.take("values", list, needed=True)),
        inner.texts("columns"),
    )
    inner.done()
    return sweep


def _question(table: _Table) -> Question:
    between = table.take("between", list)
    question = Question(
        question=table.take("question", str, needed=True),
        answer=table.take("answer", str, needed=True),
        reply=table.take("reply", str, needed=True),
        worked=table.take("worked", str),
        between=(float(between[0]), float(between[1])) if between else None,
        within=table.take("within", float, 0.0),
        wrong=tuple(map(_misstep, table.tables("wrong"))),
    )
    table.done()
    if question.worked is None and question.between is None:
        raise ExerciseError(f"{table.where}: give it worked or between, or nobody notices when its answer changes")
    return question


def _misstep(table: _Table) -> Misstep:
    misstep = Misstep(table.take("answer", str, needed=True), table.take("reply", str, needed=True))
    table.done()
    return misstep
