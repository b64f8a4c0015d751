"""The part of `tilesmith check` that runs users' code: in a child process, which sends each step to its parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilesmith.lab.check import Result, Trial
    from tilesmith.lab.isolated import Send
    from tilesmith.spec import Spec


@dataclass(frozen=True)
class Wanted:
    """What the user asked for. No names: every operator; no dtypes, cases or layouts: those of the spec."""

    names: Sequence[str]
    dtypes: Sequence[str]
    cases: Sequence[str]
    layouts: Sequence[str]


@dataclass(frozen=True)
class Unusable:
    """A file or an argument that cannot be checked, in one line."""

    message: str


@dataclass(frozen=True)
class Loading:
    """A file that is about to be imported."""

    name: str


@dataclass(frozen=True)
class Started:
    """A spec whose trials begin."""

    number: int
    name: str
    trials: int
    left_out: Sequence[str]


@dataclass(frozen=True)
class Trying:
    """A trial that begins."""

    case: str
    dtype: str
    layout: str


@dataclass(frozen=True)
class Tried:
    """A trial that is over."""

    results: Sequence[Result]


@dataclass(frozen=True)
class Finished:
    """A spec whose trials are over.

    `configurations` says how many configurations of an autotuner ran. `notes` are sentences about a right kernel.
    """

    configurations: str
    notes: Sequence[str]


def run_checks(send: Send, wanted: Wanted, first: int) -> None:
    """Check everything that is wanted, from the spec with number `first`, and send each step."""
    from tilesmith.ops import use
    from tilesmith.spec import SpecError

    try:
        specs = loaded(wanted.names, send)
        for number, spec in enumerate(specs):
            if number >= first:
                with use("triton"):  # our kernels, even where PyTorch was measured faster
                    _check_one(send, number, spec, wanted)
    except SpecError as error:
        send(Unusable(str(error)))


def loaded(names: Sequence[str], send: Send = lambda message: None) -> list[Spec]:
    """Return the specs of the named operators and files; all operators if no name is given."""
    from tilesmith.ops import SPECS

    return [_spec(name, SPECS, send) for name in names or SPECS]


def _spec(name: str, known: Mapping[str, Spec], send: Send) -> Spec:
    from tilesmith.spec import SpecError, load_file, unknown_operator

    if name in known:
        return known[name]
    if name.endswith(".py"):
        send(Loading(name))
        return load_file(Path(name))
    raise SpecError(unknown_operator(name, list(known)))


def _check_one(send: Send, number: int, spec: Spec, wanted: Wanted) -> None:
    from tilesmith.lab.check import kernels_matter
    from tilesmith.lab.check.launches import Launches

    chosen = _trials(spec, wanted)
    tried = {trial.case.name for trial in chosen}
    left_out = [case.name for case in spec.cases if not wanted.cases and case.name not in tried]
    send(Started(number, spec.name, len(chosen), left_out))
    launches = Launches(is_file="".join(wanted.names[number : number + 1]).endswith(".py"))
    for trial in chosen:
        send(_trying(trial))
        send(Tried(launches.run(trial)))
    for trial in launches.tuned(chosen):
        send(_trying(trial))
        for result in launches.run_configurations(trial):
            send(Tried([result]))
    send(Tried(kernels_matter(chosen)))
    send(Finished(launches.summary(), launches.notes()))


def _trying(trial: Trial) -> Trying:
    return Trying(trial.case.name, str(trial.dtype).removeprefix("torch."), trial.layout.name)


def _trials(spec: Spec, wanted: Wanted) -> list[Trial]:
    from tilesmith.lab.check import trials
    from tilesmith.spec import SpecError

    known_dtypes = {str(one).removeprefix("torch."): one for one in spec.dtypes}
    chosen = trials(
        spec,
        cases=[spec.case(name) for name in wanted.cases] or None,
        dtypes=[_named("dtype", name, known_dtypes) for name in wanted.dtypes],
        layouts=[_named("layout", name, {one.name: one for one in spec.layouts}) for name in wanted.layouts],
    )
    if not chosen:
        names = ", ".join(case.name for case in spec.cases)
        raise SpecError(
            f"{spec.name}: without a GPU every case is too large ({names}); add a small case, or name one with --case"
        )
    return chosen


def _named(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    from tilesmith.spec import SpecError

    if name not in known:
        raise SpecError(f"{kind} {name!r} is not one of {', '.join(known)}")
    return known[name]
