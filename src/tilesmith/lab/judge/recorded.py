"""Ask the candidate's process for one trial: a call that warms up, then a call whose tape and outputs are kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.expected import names_of_changed
from tilesmith.lab.judge.expected import Expected
from tilesmith.lab.judge.isolation.arena import ALIGNMENT, aligned
from tilesmith.lab.judge.isolation.children import Child
from tilesmith.lab.judge.recording.circumstances import inputs_in
from tilesmith.lab.judge.shared_values import BadOutput, changed_tensors, lay, read_output
from tilesmith.lab.judge.tape_checks import is_well_formed
from tilesmith.lab.judge.task import Draw, Task, Trial
from tilesmith.lab.judge.verdict import Reason
from tilesmith.spec import Inputs

COTANGENTS_AT = 384 << 20  # in every arena; inputs, outputs and constants lie before
MOST_PLACES = 64
MOST_CONSTANT_BYTES = 64 << 20
MOST_BUILDS = 8  # extensions, in one call of a candidate
COTANGENT_SEED = 7
SEEN: dict[Draw, Draw] = {"wide": "wide-seen", "spiked": "spiked-seen", "sparse": "sparse-seen"}


Build = Callable[[Any, Child], dict[str, Any]]


class Failure(Exception):
    """The candidate fails a trial, or leaves it open."""

    def __init__(self, reason: Reason, *, open: bool = False) -> None:
        super().__init__(reason.message)
        self.reason = reason
        self.open = open


@dataclass
class Recorded:
    """One recorded call: its tape, its constants, and what the candidate's process says the outputs are."""

    trial: Trial
    inputs: Inputs
    tape: dict[str, Any]
    references: list[Any]  # of outputs, then of gradients
    outputs: list[Tensor]
    gradients: dict[str, Tensor] | None
    constants: dict[str, Tensor] = field(default_factory=dict)
    forward_steps: int = 0
    own_parameters: bool = True
    performed: bool = True
    circumstance: str = ""
    follows_values: bool = True  # whether other values may have led to other launches
    variants: dict[Draw, Recorded] = field(default_factory=dict)  # where the candidate does something else


class Recorder:
    """The candidate's process for one judgement."""

    def __init__(self, task: Task, child: Child, seed: int, build: Build | None = None) -> None:
        """`build` compiles the extensions that a candidate's process on a GPU asks for."""
        self._task = task
        self._child = child
        self._seed = seed
        self._build = build
        self._choices: dict[str, Any] = {}
        self._places = random.Random(f"{seed} places")
        self._wanted: Sequence[str] | None = None
        self._circumstance = ""
        self._place = 0  # of the next call's inputs, in steps of the alignment
        self._follows_values = True  # until calls with other values had the same launches
        self.own_parameters = True
        self.asked: list[str] = []  # conditions that the last request asked for
        self.seconds: float | None = None  # for one call, where the limits allow more

    def load(self, main: str, seed: int = 0, *, turned: str | None = None) -> None:
        """Import the candidate, with this seed for the random numbers of a module. Raises Failure or Ended.

        With `turned`, conditions of its text are marked, and the one of this name, if any, is inverted: calls in a
        circumstance of TURNED can do so too.
        """
        parameters = dict(self._task.parameters(0)) if self._task.parameters is not None else {}
        given = {"init": list(self._task.init), "parameters": parameters}
        laid = lay(given, self._child.arena, COTANGENTS_AT // 2)
        answer = self._ask(
            {
                "do": "load",
                "main": main,
                "names": list(self._task.function_names),
                "init": laid.encoded["init"]["list"],
                "parameters": laid.encoded["parameters"],
                "seed": seed,
                "turned": turned,
            }
        )
        if "error" in answer:
            known = {"NoFunction": "no-function", "SyntaxError": "syntax-error"}
            kind = known.get(str(answer.get("kind")), "import-error")
            message = str(answer["error"]).removeprefix("NoFunction: ")[:500]
            raise Failure(Reason(kind, "loads", message, _LOAD_ADVICE.get(kind, "")))
        self.own_parameters = answer.get("bound") is not True
        self.asked = _names(answer)

    def record(
        self, trial: Trial, *, perform: bool = True, configuration: int = 0, variants: Sequence[Draw] = (),
        leaves: Sequence[str] | None = None,
    ) -> Recorded:  # fmt: skip
        """Record one trial, after one or two calls that nobody can foresee. Raises Failure, or Ended.

        Without `perform` the launches are only written down, and outputs hold nothing. `configuration` is the one that
        autotuners take. The candidate gets inputs of `variants` too, for which it may do something else. `leaves` are
        the inputs that need gradients: by default all that can have one.
        """
        self._wanted = leaves
        self._choices = {"perform": perform, "configuration": configuration}
        for number in range(1, 2 + random.Random(f"{self._seed} {trial!r}").randrange(2)):
            self._place = self._places.randrange(MOST_PLACES)  # no address may decide what is launched
            warm = self._inputs(trial, self._seed + number, "seen")
            self._call(warm, self._leaves_of(warm), record=False)
        recorded = self._recorded(trial, "seen", perform)
        for draw in variants:
            found = self._recorded_variant(recorded, SEEN[draw])
            if found is not None:
                recorded.variants[draw] = found
        if variants:
            self._follows_values = bool(recorded.variants)
        recorded.follows_values = self._follows_values
        return recorded

    def glance(self, trial: Trial, circumstance: str = "", *, perform: bool = False) -> Recorded:
        """Write down the launches of one call without gradients. Raises Failure, or Ended.

        Without `perform` nothing is computed. `circumstance` is one of `circumstances.py`.
        """
        self._wanted, self._choices = (), {"perform": perform, "configuration": 0}
        self._place = self._places.randrange(MOST_PLACES)
        self._circumstance = circumstance
        try:
            return self._recorded(trial, "seen", perform)
        finally:
            self._circumstance = ""

    def _recorded_variant(self, recorded: Recorded, draw: Draw) -> Recorded | None:
        """Return the record of a call on other inputs; None if it has the same steps, as most candidates' have."""
        trial = recorded.trial
        self._place = MOST_PLACES - 1 - self._place  # every bit of the address differs
        try:
            self._choices["perform"] = False
            found = self._recorded(trial, draw, False)
            if steps_of(found.tape) == steps_of(recorded.tape):
                return None
        except Failure:
            pass  # results that were not computed may have no meaning for the candidate
        self._choices["perform"] = True
        found = self._recorded(trial, draw, True)
        return None if steps_of(found.tape) == steps_of(recorded.tape) else found

    def _inputs(self, trial: Trial, seed: int, draw: Draw) -> Inputs:
        inputs = self._task.inputs(trial, seed, draw, own_parameters=self.own_parameters)
        return inputs_in(self._circumstance, inputs)

    def _leaves_of(self, inputs: Inputs) -> list[str]:
        leaves = self._task.spec.leaves(inputs) if self._task.rules.gradients != "none" else []
        return leaves if self._wanted is None else [one for one in leaves if one in self._wanted]

    def _recorded(self, trial: Trial, draw: Draw, perform: bool) -> Recorded:
        inputs = self._inputs(trial, self._seed, draw)
        leaves = self._leaves_of(inputs)
        # Another call may come before the backward of this one.
        again = bool(leaves) and trial.hidden and not self._task.rules.in_place
        answer = self._call(inputs, leaves, record=True, again=again)
        described = answer.get("outputs")
        if not isinstance(described, list) or not all(_is_described(one) for one in described):
            raise BadOutput("an answer without outputs")
        for one in described:
            if one.get("type") not in ("Tensor", "Parameter"):
                message = f"the output is a {one.get('type')}, which may compute later; it must be a plain tensor"
                raise Failure(
                    Reason("not-a-tensor", "honest", message, "Return torch.Tensor, computed when it returns.")
                )
        outputs = [read_output(one, self._child.arena) for one in described]
        tape = self._checked_tape(answer)
        forward_steps = len(tape["steps"])
        references = [one["reference"] for one in described]
        gradients = None
        offered = any(one.get("has_gradient") for one in described)
        if leaves and self._task.rules.gradients == "required" and not offered:
            message = "the outputs have no gradient, but the task wants one"
            raise Failure(Reason("no-gradient", "runs", message, "Wrap the kernels in a torch.autograd.Function."))
        if leaves and offered:
            gradients, more, tape = self._backward(trial, inputs, outputs, perform)
            references += more
        self._refuse_changes(inputs)
        constants = self._constants(tape)
        return Recorded(
            trial, inputs, tape, references, outputs, gradients, constants, forward_steps, self.own_parameters, perform,
            self._circumstance,
        )  # fmt: skip

    def _call(self, inputs: Inputs, leaves: list[str], *, record: bool, again: bool = False) -> dict[str, Any]:
        laid = self._laid = lay(inputs, self._child.arena, shift=ALIGNMENT * self._place)
        request = {
            "do": "call",
            "inputs": laid.encoded,
            "leaves": leaves,
            "style": self._task.style,
            "changed": names_of_changed(self._task.spec, inputs),
            "record": record,
            "again": again,
            "circumstance": self._circumstance,
            **self._choices,
            "tf32": self._task.rules.tf32,
            "room": laid.room,
            "shift": laid.shift,
        }
        answer = self._ask(request, self.seconds)
        if "error" in answer:
            raise Failure(self._exception(answer, list(inputs)))
        self.asked = _names(answer)
        return answer

    def _ask(self, request: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Ask the candidate's process, and build the extensions that it wants in the meantime."""
        answer = self._child.ask(request, seconds)
        for _ in range(MOST_BUILDS):
            if "build" not in answer or self._build is None:
                break
            answer = self._child.ask(self._build(answer["build"], self._child), seconds)
        return answer

    def _backward(
        self, trial: Trial, inputs: Inputs, outputs: list[Tensor], perform: bool
    ) -> tuple[dict[str, Tensor], list[Any], dict[str, Any]]:
        wanted: Mapping[str, Tensor | None] = {}
        cotangents: list[Tensor | None] = [torch.ones_like(one) if one.is_floating_point() else None for one in outputs]
        if perform or trial.hidden:
            expected = Expected(self._task, trial, inputs, gradients=True, cotangent_seed=COTANGENT_SEED)
            wrong = expected.misshapen(outputs)
            if wrong is not None:
                raise Failure(Reason("wrong-shape", "runs", wrong.message, "Return what the definition returns."))
            cotangents, wanted = expected.cotangents, expected.exact_gradients
        given = {str(number): one for number, one in enumerate(cotangents)}
        laid = lay(given, self._child.arena, COTANGENTS_AT)
        answer = self._ask({"do": "backward", "cotangents": list(laid.encoded.values())})
        if "error" in answer:
            raise Failure(self._exception(answer))
        found = answer.get("gradients")
        if not isinstance(found, dict) or not all(_is_described(one) for one in found.values()):
            raise BadOutput("an answer without gradients")
        leaves = self._leaves_of(inputs)
        missing = [name for name, one in wanted.items() if one is not None and name in leaves and name not in found]
        if missing:
            message = f"no gradient reaches {', '.join(missing)}"
            raise Failure(Reason("no-gradient", "right", message, "Return a gradient for every input in backward."))
        gradients = {name: read_output(one, self._child.arena) for name, one in found.items()}
        return gradients, [one["reference"] for one in found.values()], self._checked_tape(answer)

    def _checked_tape(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        tape = answer.get("tape")
        if not is_well_formed(tape):
            raise BadOutput("a damaged record of its launches")
        return dict(tape)  # type: ignore[arg-type]  # a dict, as is_well_formed says

    def _refuse_changes(self, inputs: Inputs) -> None:
        changed = changed_tensors(self._laid, inputs, self._child.arena)
        if changed and not self._task.rules.in_place:
            message = f"the candidate changes its input {changed[0]}"
            raise Failure(Reason("changes-input", "safe", message, "Write results to new memory."))

    def _constants(self, tape: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return copies of the memory that held values before the call: the arena is used again."""
        found, total = {}, 0
        for number, storage in enumerate(tape["storages"]):
            if storage.get("kind") != "constant":
                continue
            at, length = storage.get("at"), storage.get("bytes")
            if not isinstance(at, int) or not isinstance(length, int) or length < 0:
                raise BadOutput("a constant without a place")
            total += length
            if total > MOST_CONSTANT_BYTES:
                message = (
                    f"the candidate keeps more than {MOST_CONSTANT_BYTES >> 20} MiB of values from before the call"
                )
                raise Failure(Reason("constants", "honest", message, "Compute from the inputs, in every call."))
            found[str(number)] = self._child.arena.storage_at(at, length).clone()
        return found

    def _exception(self, answer: Mapping[str, Any], names: Sequence[str] = ()) -> Reason:
        message = str(answer["error"])[:600]
        if answer.get("kind") == "TypeError" and "returns a" in message:
            return Reason("bad-output", "runs", f"the candidate returns{message.partition('returns')[2]}")
        file, line = _place(message)
        advice = "The candidate raised this error when it was called."
        if answer.get("kind") == "TypeError" and "argument" in message and names and self._task.style == "named":
            advice = f"The task calls {self._task.name}({', '.join(names)})."
        return Reason("exception", "runs", message, advice, file=file, line=line)


def _is_described(output: Any) -> bool:
    return isinstance(output, dict) and isinstance(output.get("reference"), list)


def _names(answer: Mapping[str, Any]) -> list[str]:
    found = answer.get("asked")
    return [str(one) for one in found] if isinstance(found, list) else []


def steps_of(tape: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a tape that is not marked yet, with the kernels' texts."""
    return [*tape["steps"], {"kernels": tape["kernels"], "storages": [one.get("kind") for one in tape["storages"]]}]


_LOAD_ADVICE = {
    "no-function": "Define a function with the task's name and arguments.",
    "import-error": "The file must be importable without a GPU, network, or other files.",
}


def _place(message: str) -> tuple[str | None, int | None]:
    """Return the file and line at the end of a described error."""
    inside = message.rpartition("(")[2].rstrip(")")
    file, _, line = inside.rpartition(":")
    return (file, int(line)) if file.endswith(".py") and line.isdecimal() else (None, None)


def put_constants(constants: Mapping[str, Tensor], arena: Any, start: int) -> tuple[dict[str, int], int]:
    """Copy constants into an arena. Return their places, and the room after them."""
    places, room = {}, aligned(start)
    for number, content in constants.items():
        places[number] = room
        if content.numel():
            arena.storage_at(room, content.numel()).copy_(content)
        room = aligned(room + max(1, content.numel()))
    return places, room


def same_structure(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two draws of inputs have the same shapes, strides and plain values."""

    def shape(value: Any) -> Any:
        if isinstance(value, dict | list | tuple):
            values = value.values() if isinstance(value, dict) else value
            return [shape(one) for one in values]
        return (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value

    return {name: shape(value) for name, value in one.items()} == {name: shape(value) for name, value in other.items()}
