"""A task: what a candidate must compute, on which inputs, under which rules. It belongs to the judge alone."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tilesmith.lab.judge.sizing.free_sizes import filled, is_free, largest_of, redrawn, scaled, with_number
from tilesmith.lab.judge.sizing.planting import plant
from tilesmith.spec import CONTIGUOUS, Case, Inputs, Layout, Spec, SpecError, called, is_differentiable, load_file

Draw = Literal[
    "seen", "fresh", "wide", "wide-seen", "small", "mirrored", "spiked", "spiked-seen", "sparse", "sparse-seen",
    "planted",
]  # fmt: skip
MOST_RESIZED_DTYPES = 2
MOST_SURVEYED = 48  # sizes at which a call is recorded, to see whether it launches something else
LARGEST_CASE_BYTES = 128 << 10  # interpreted several times; larger cases need a GPU
WIDE = 32.0  # exp overflows float32 at this scale, unless the maximum is subtracted first
SMALL = 2.0**-10  # an epsilon of 1e-6 beside a mean square matters at this scale
_SCALES: dict[str, float] = {"wide": WIDE, "wide-seen": WIDE, "small": SMALL, "mirrored": -1.0}
LARGEST_STRETCHED_SIZE = 8192
SMALLEST_STRETCHED_SIZE = 512
SPIKE = 1000.0
STRETCHED_NAME = "hidden, large "
HIDDEN_CASES = 2
LARGEST_TIMED_BYTES = 96 << 20
SMALLEST_TIMED_BYTES = 24 << 20  # half the L2 of an H200; smaller cases time the launch
LARGEST_INNER_SIZE = 4096
SMALLEST_TIMED_SIZE = 64


class TaskError(Exception):
    """A task that cannot be judged; the message is one line for the user."""


@dataclass(frozen=True)
class Rules:
    """What a candidate may do.

    - `torch`: with "movement", PyTorch may only allocate, fill, copy, cast, concatenate and make views.
      With "any", PyTorch may compute too, and at least one kernel must contribute.
    - `gradients`: with "offered", gradients are judged if the candidate has them; with "required", it must have them.
    - `tf32`: products of float32 may round their operands to tf32.
    - `generated_kernels`: kernels may come from text that the candidate makes while it runs.
    - `in_place`: the candidate may change its inputs.
    - `moves`: PyTorch may copy, cast and concatenate.
    - `wide`: inputs 32 times larger are tried too.
    """

    torch: Literal["movement", "any"] = "movement"
    must_launch: bool = True
    gradients: Literal["none", "offered", "required"] = "offered"
    tf32: bool = False
    generated_kernels: bool = False
    in_place: bool = False
    moves: bool = True
    wide: bool = True
    seconds: float = 20.0
    gigabytes: float = 4.0


@dataclass(frozen=True)
class Trial:
    """One combination of case, dtype and layout. `hidden` ones are sizes that no candidate's author has seen."""

    case: Case
    dtype: torch.dtype
    layout: Layout
    hidden: bool = False
    planted: tuple[float, ...] = ()  # values that some elements get
    scale: float = 1.0

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A definition in plain PyTorch with inputs, sizes, dtypes, layouts, least work and rules.

    `function_names` are the names under which a candidate's function is looked for. `style` says how it is called: by
    name, in order, or with all arguments as one tuple. `init` are the arguments of a candidate that is a class, and
    `parameters(seed)` its weights, which belong to the task; seed 0 gives those of a new module.
    """

    spec: Spec
    rules: Rules = Rules()
    given: Sequence[Case] = ()
    hidden: Sequence[Case] | None = None  # None: sizes drawn for each judgement
    dtypes: Sequence[torch.dtype] = ()
    layouts: Sequence[Layout] = (CONTIGUOUS,)
    function_names: Sequence[str] = ()
    style: Literal["named", "positional", "packed"] = "named"
    init: Sequence[Any] = ()
    parameters: Callable[[int], Mapping[str, Tensor]] | None = None
    timed: Task | None = None  # the same problem at the size to time, where that needs other modules or cases

    @property
    def name(self) -> str:
        return self.spec.name

    @classmethod
    def of(cls, source: Spec | Path | str, rules: Rules | None = None, **choices: Any) -> Task:
        """Return the task of a spec, or of a file with a SPEC. Raises TaskError."""
        try:
            spec = source if isinstance(source, Spec) else load_file(Path(source))
        except SpecError as error:
            raise TaskError(str(error)) from None
        rules = rules or Rules()
        if not spec.differentiable:
            rules = replace(rules, gradients="none")
        if spec.name.endswith("_"):
            rules = replace(rules, in_place=True)
        choices.setdefault("function_names", (spec.name, "candidate", "solution", "run"))
        return cls(spec=spec, rules=rules, **choices)

    def trials(self, seed: int) -> list[Trial]:
        """Return the trials of one judgement: given sizes in every dtype, hidden sizes, other layouts."""
        dtypes = list(self.dtypes or self.spec.dtypes)
        given = list(self.given) or self._small_cases()
        hidden = self._drawn_cases(given, seed) if self.hidden is None else list(self.hidden)
        plain = self.layouts[0]
        trials = [Trial(case, dtypes[0], plain) for case in given]
        trials += [Trial(case, dtypes[0], plain, hidden=True) for case in hidden]
        typical = (hidden or given)[-1]
        trials += [Trial(typical, dtype, plain, hidden=bool(hidden)) for dtype in dtypes[1:]]
        trials += [Trial(typical, dtypes[0], layout, hidden=bool(hidden)) for layout in self.layouts[1:]]
        return trials

    def inputs(self, trial: Trial, seed: int, draw: Draw, *, own_parameters: bool = False) -> Inputs:
        """Return new inputs. The same seed and draw give the same inputs.

        With `own_parameters` the candidate's module has parameters of its own, made with seed 0 like the task's.
        """
        # A digest, so that nobody who finds the seed of one draw can compute that of another.
        text = f"{seed} {draw} {trial.case!r} {trial.dtype} {trial.layout.name}"
        mixed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        with seeded(mixed):
            inputs = self.spec.inputs(trial.case, trial.dtype, "cpu", trial.layout)
        if draw in _SCALES:
            for name in self._scalable(inputs, draw):
                storage = inputs[name].untyped_storage()
                torch.empty(0, dtype=inputs[name].dtype).set_(storage).mul_(_SCALES[draw])
        if draw in _ODD:
            for number, name in enumerate(self._scalable(inputs, draw)):
                _ODD[draw](inputs[name], torch.Generator().manual_seed(mixed + number))
        for name in self._scalable(inputs, draw) if trial.scale != 1.0 else ():
            torch.empty(0, dtype=inputs[name].dtype).set_(inputs[name].untyped_storage()).mul_(trial.scale)
        for name in self._scalable(inputs, draw) if trial.planted else ():
            plant(inputs[name], trial.planted, torch.Generator().manual_seed(mixed))  # at the same places in each
        if self.parameters is not None:
            inputs["parameters"] = dict(self.parameters(0 if own_parameters else mixed))
        return inputs

    def mirrors(self, inputs: Inputs) -> bool:
        """Return whether some input is never negative by its draw alone; mirrored, it is never positive."""
        return bool(self._scalable(inputs, "mirrored"))

    def _scalable(self, inputs: Inputs, draw: Draw) -> list[str]:
        names = [name for name, value in inputs.items() if is_differentiable(value) and name not in self.spec.fixed]
        return names if draw != "mirrored" else [name for name in names if _is_one_sided(inputs[name])]

    def stretched(self, seed: int) -> list[Trial]:
        """Return a hidden trial for each free size, in which this size is large and the others are small."""
        if self.hidden is not None:
            return []
        chance = random.Random(f"{seed} {self.name} stretched")
        dtype = (self.dtypes or self.spec.dtypes)[0]
        given = list(self.given) or self._small_cases()
        found: dict[str, Case] = {}
        for like in given:
            free = [name for name in like.sizes if self._is_free(name) and name not in found]
            for name in free:
                case = self._stretched(like, name, chance)
                found |= {} if case is None else {name: case}
        return [Trial(case, dtype, self.layouts[0], hidden=True) for case in found.values()]

    def _stretched(self, like: Case, name: str, chance: random.Random) -> Case | None:
        small = self._redrawn(like, chance, lambda one: chance.randint(2, 5))
        size = LARGEST_STRETCHED_SIZE
        while size >= SMALLEST_STRETCHED_SIZE and size > largest_of(like.sizes[name]):
            number = chance.randint(3 * size // 4, size)
            for few in (small, self._redrawn(like, chance, lambda one: 2)):
                large, *_ = with_number(few[name], number, (), chance) or [few[name]]
                case = Case(f"{STRETCHED_NAME}{name}", **{**like.sizes, **few, name: large})
                if self._accepts(case) and self._size(case) <= LARGEST_CASE_BYTES and self._works(case):
                    return case
            size //= 2
        return None

    def surveyed(self, seed: int) -> list[Trial]:
        """Return many hidden trials of sizes of every magnitude, some with equal sizes: most are only recorded."""
        if self.hidden is not None:
            return []
        chance = random.Random(f"{seed} {self.name} surveyed")
        dtypes = list(self.dtypes or self.spec.dtypes)
        given = list(self.given) or self._small_cases()
        found = []
        for number in range(MOST_SURVEYED):
            like = given[number % len(given)]
            drawn = self._redrawn(like, chance, lambda one: chance.randint(2, 2 ** chance.randint(3, 9)))
            if number % 8 == 0:
                same = min(map(largest_of, drawn.values()), default=2)
                drawn = {name: filled(size, same) for name, size in drawn.items()}
            case = Case("hidden, surveyed", **{**like.sizes, **drawn})
            if drawn and self._accepts(case) and self._size(case) <= LARGEST_CASE_BYTES and self._works(case):
                found.append(Trial(case, dtypes[number % len(dtypes)], self.layouts[0], hidden=True))
        return found

    def resized(self, sizes: Sequence[int], seed: int, other: int | None = None) -> list[Trial]:
        """Return hidden trials of each of these sizes for each free size of the task; the other sizes are small.

        The first two dtypes are tried: a candidate may do something else for a size in one of them.
        """
        if self.hidden is not None:
            return []
        chance = random.Random(f"{seed} {self.name} resized")
        dtypes = (self.dtypes or self.spec.dtypes)[:MOST_RESIZED_DTYPES]
        given = list(self.given) or self._small_cases()
        likes = {name: like for like in reversed(given) for name in like.sizes if self._is_free(name)}
        cases = []
        for size in sizes:
            for name, like in likes.items():
                small = self._redrawn(like, chance, lambda one: chance.randint(2, 5) if other is None else other)
                for shown in with_number(small[name], size, self._sizes_in_cases(name), chance):
                    case = Case(f"hidden, {name}", **{**like.sizes, **small, name: shown})
                    if self._accepts(case) and self._size(case) <= LARGEST_CASE_BYTES and self._works(case):
                        cases.append(case)
        return [Trial(case, dtype, self.layouts[0], hidden=True) for dtype in dtypes for case in cases]

    def shrunk(self, trial: Trial, factor: float) -> Trial | None:
        """Return a stretched trial with its large size times a factor; None where the task does not take that size."""
        name = trial.case.name.removeprefix(STRETCHED_NAME)
        sizes = {**trial.case.sizes, name: scaled(trial.case.sizes[name], factor)}
        case = Case(trial.case.name, **sizes)
        works = largest_of(sizes[name]) and self._accepts(case) and self._works(case)
        return replace(trial, case=case) if works else None

    def timed_cases(self) -> list[Case]:
        """Return the cases to time, the preferred one first: one that is large enough, then the spec's largest."""
        sized = [(self._size(case), number) for number, case in enumerate(self.spec.cases)]
        largest, number = max((one for one in sized if one[0] <= LARGEST_TIMED_BYTES), default=min(sized))
        case = self.spec.cases[number]
        if largest > LARGEST_TIMED_BYTES:
            return [self._shrunk(case)]
        grown = self._grown(case) if largest < SMALLEST_TIMED_BYTES else case
        return [case] if grown == case else [grown, case]

    def _shrunk(self, case: Case) -> Case:
        """Return a case whose sizes are halved, the first that allows it, until it fits."""
        sizes = dict(case.sizes)
        while self._size(Case("timed", **sizes)) > LARGEST_TIMED_BYTES:
            large = {name: size for name, size in sizes.items() if largest_of(size) >= 2 * SMALLEST_TIMED_SIZE}
            smaller = ({**sizes, name: scaled(size, 1 / 2)} for name, size in large.items())
            found = next((one for one in smaller if self._accepts(Case("timed", **one))), None)
            if found is None:
                raise TaskError(f"{self.name}: every case is too large to time")
            sizes = found
        return Case("timed", **sizes)

    def _accepts(self, case: Case) -> bool:
        try:
            return self._size(case) > 0
        except Exception:
            return False

    def _grown(self, case: Case) -> Case:
        """Return a case with free sizes doubled in turn until it is large; the first size alone goes beyond 4096."""
        free = [name for name in case.sizes if self._is_free(name)]
        sizes = dict(case.sizes)
        for turn in range(256):
            if not free or self._size(Case("timed", **sizes)) >= SMALLEST_TIMED_BYTES:
                break
            name = free[turn % len(free)]
            if 2 * largest_of(sizes[name]) <= LARGEST_INNER_SIZE or name == free[0]:
                larger = {**sizes, name: scaled(sizes[name], 2)}
                if self._size(Case("timed", **larger)) <= LARGEST_TIMED_BYTES:
                    sizes = larger
        grown = Case("timed", **sizes)
        return grown if sizes != dict(case.sizes) and self._works(grown) else case

    def floor_bytes(self, trial: Trial) -> int | None:
        """Return the least bytes that the forward must move; None where the spec gives no cost."""
        try:
            return self.spec.cost(trial.case, trial.dtype).forward.bytes if self.spec.cost else None
        except Exception:
            return None

    def _small_cases(self) -> list[Case]:
        sized = [(self._size(case), case) for case in self.spec.cases]
        small = [case for size, case in sized if size <= LARGEST_CASE_BYTES]
        if not small:
            smallest, case = min(sized, key=lambda one: one[0])
            if smallest > 64 * LARGEST_CASE_BYTES:
                raise TaskError(f"{self.name}: every case is too large for the interpreter; add a small one")
            return [case]
        return small

    def _size(self, case: Case) -> int:
        if self.spec.cost is not None:
            try:
                return self.spec.cost(case, self.spec.dtypes[0]).forward.bytes
            except Exception as error:
                raise TaskError(f"{self.name}: cost fails for {case!r}: {error}") from None
        try:
            inputs = self.spec.inputs(case, self.spec.dtypes[0], "meta")
        except SpecError:
            inputs = self.spec.inputs(case, self.spec.dtypes[0], "cpu")
        return sum(value.nbytes for value in inputs.values() if isinstance(value, Tensor))

    def _drawn_cases(self, given: Sequence[Case], seed: int) -> list[Case]:
        """Return cases with new sizes, where the spec's own cases show that a size is free."""
        chance = random.Random(f"{seed} {self.name}")
        found: list[Case] = []
        for _ in range(4 * HIDDEN_CASES):
            like = chance.choice(list(given))
            drawn = self._redrawn(like, chance, lambda one: chance.randint(max(2, one // 2), max(9, 2 * one)))
            if not drawn:
                break
            case = Case(f"hidden {len(found) + 1}", **{**like.sizes, **drawn})
            if self._works(case) and self._size(case) <= LARGEST_CASE_BYTES:
                found.append(case)
            if len(found) == HIDDEN_CASES:
                break
        return found

    def _is_free(self, name: str) -> bool:
        """Return whether a size takes odd values above one, and whole numbers only, in the spec's cases."""
        return is_free(self._sizes_in_cases(name))

    def _sizes_in_cases(self, name: str) -> list[Any]:
        return [case.sizes[name] for case in self.spec.cases if name in case.sizes]

    def _redrawn(self, like: Case, chance: random.Random, draw: Callable[[int], int]) -> dict[str, Any]:
        """Return each free size of a case with other entries."""
        free = {name: self._sizes_in_cases(name) for name in like.sizes if self._is_free(name)}
        return {name: redrawn(like.sizes[name], given, chance, draw) for name, given in free.items()}

    def _works(self, case: Case) -> bool:
        """Return whether the definition takes a case."""
        try:
            trial = Trial(case, (self.dtypes or self.spec.dtypes)[0], self.layouts[0])
            inputs = self.inputs(trial, 0, "seen")
            called(self.spec.reference, inputs)
        except Exception:
            return False
        return True


def _is_one_sided(value: Tensor) -> bool:
    """Return whether a tensor holds no negative value, and is neither empty nor a mask of whole numbers."""
    return bool(value.numel() > 1 and (value >= 0).all() and (value != value.round()).float().mean() > 0.5)


def _spike(value: Tensor, generator: torch.Generator) -> None:
    """Make one element large in about half of the rows: no sample of a row shows its largest element.

    The other rows get magnitudes from 2⁻²⁴ to 2⁶, and a third of them one sign.
    """
    if value.dim() and value.numel() and 0 not in value.stride():
        column = torch.randint(value.size(-1), (*value.shape[:-1], 1), generator=generator)
        column = column.masked_fill(torch.rand(column.shape, generator=generator) < 0.5, -1)
        is_large = torch.arange(value.size(-1)) == column
        chance = torch.rand(column.shape, generator=generator)
        other = torch.where(chance < 1 / 3, torch.where(chance < 1 / 6, -value.abs(), value.abs()), value)
        other = other * torch.exp2(30 * torch.rand(column.shape, generator=generator) - 24)
        large = value.sign() * (value.abs() + 1) * SPIKE
        value.copy_(torch.where(is_large, large, torch.where(column < 0, other, value)))


def _thin_out(value: Tensor, generator: torch.Generator) -> None:
    """Make an eighth of the elements zero, and an eighth the largest: a draw of real numbers has neither twice."""
    if value.numel() and 0 not in value.stride():
        chance = torch.rand(value.shape, generator=generator)
        value.copy_(torch.where(chance < 1 / 8, 0, torch.where(chance < 1 / 4, value.max(), value)))


_ODD: dict[str, Callable[[Tensor, torch.Generator], None]] = {
    "spiked": _spike, "spiked-seen": _spike, "sparse": _thin_out, "sparse-seen": _thin_out
}  # fmt: skip
_one_at_a_time = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's generator for this block. It belongs to the whole process, so other threads wait."""
    with _one_at_a_time, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
