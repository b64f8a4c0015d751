"""One candidate's launches on a GPU: outputs compared with the definition, and times of verified replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.judge.expected import Expected, Wrong
from tilesmith.lab.judge.isolation.children import Child, Ended
from tilesmith.lab.judge.recorded import COTANGENTS_AT, Failure, Recorded, put_constants, same_structure
from tilesmith.lab.judge.recording.circumstances import inputs_in
from tilesmith.lab.judge.shared_values import lay, read_output
from tilesmith.lab.judge.task import Draw, Task, TaskError
from tilesmith.lab.judge.timing.fresh import FreshInputs, bytes_of, mixable, storages_in
from tilesmith.lab.judge.timing.gpu_turns import alone_on_gpu
from tilesmith.lab.judge.verdict import Reason
from tilesmith.spec import Inputs

SECONDS_TO_PREPARE = 120.0  # compiling for this GPU
SECONDS_TO_TIME = 60.0
_STAGES = {
    "compile-error": "compiles", "gpu-error": "safe", "skipped-work": "honest", "torch-computes": "honest",
    "not-a-kernel": "honest",
}  # fmt: skip
_ADVICE = {
    "compile-error": "The kernel must compile for this GPU at the timed size.",
    "gpu-error": "Mask off the lanes outside the tensors, and check the offsets at this size.",
    "skipped-work": "Compute every element in every call.",
    "wrong-value": "The launches are right at small sizes. Look at what depends on the size: grid, masks, offsets.",
}


class NotTimed(Exception):
    """This candidate has no times; the message says why."""


@dataclass
class _Drawn:
    """Two draws in the child's arena, and the means to make the same mixtures here."""

    held: dict[str, Any]  # inputs and cotangents, filled anew for each sample
    names: list[str]
    fresh: FreshInputs
    request: dict[str, Any]

    def at(self, replay: int, place: int) -> tuple[Inputs, list[Tensor | None]]:
        contents = self.fresh.at(replay, place)
        for name, tensor in zip(self.names, storages_in(self.held), strict=True):
            bytes_of(tensor).copy_(contents[name])
        return self.held["inputs"], self.held["cotangents"]


class DeviceJudge:
    """The timing process of one judgement, as the judge sees it."""

    def __init__(self, task: Task, child: Child, seed: int, device: str = "cuda") -> None:
        self._task = task
        self._child = child
        self._seed = seed
        self._device = device

    def check(self, recorded: Recorded, draw: Draw) -> bool:
        """Run the launches once, and compare. Return False where the draw decides nothing. Raises Failure."""
        drawn = self._drawn(recorded, draw)
        if drawn is None:
            return False
        answer = self._prepared(recorded, drawn, timed=False)
        if draw != "fresh":
            expected = self._expected(recorded, *drawn.at(-2, 0))
            indices = any(not one.is_floating_point() for one in expected.plain)
            if not expected.is_well_conditioned or (draw == "sparse" and indices):
                return False  # among equal values, several indices may be right
        self._compare(recorded, drawn, (-2, 0), answer["outputs"], "wrong-value", draw)
        return True

    def exchanged(self, recorded: Recorded) -> tuple[Inputs, Expected, list[list[Tensor]]]:
        """Return inputs, what is expected, and three runs' outputs: for other inputs, for these, and exchanged.

        In the last run, each launch leaves what it stored for the other inputs. Raises Failure.
        """
        drawn = self._drawn(recorded, "fresh")
        assert drawn is not None  # `check` was asked before
        self._prepared(recorded, drawn, timed=False)
        answer = self._asked({"do": "exchange", "room": drawn.request["room"]}, SECONDS_TO_TIME)
        inputs, cotangents = drawn.at(-2, 0)
        expected = self._expected(recorded, inputs, cotangents)
        device = expected.exact[0].device
        made = [[read_output(one, self._child.arena).to(device) for one in run] for run in answer["outputs"]]
        return inputs, expected, made

    def times(self, tapes: Sequence[Recorded]) -> dict[str, Any]:
        """Return the times of the fastest of these tapes, which differ in their configuration. Raises Failure."""
        chosen, drawn = tapes[0], self._drawn(tapes[0], "fresh")
        if drawn is None:
            raise NotTimed("the inputs of this task have other shapes in every draw")
        if len(tapes) > 1:
            quick: list[tuple[float, int]] = []
            for number, one in enumerate(tapes):
                try:
                    drawn = self._drawn(one, "fresh") or drawn
                    self._prepared(one, drawn, timed=True)
                    quick.append((float(self._clocked(few=True)["median_ms"]), number))
                except Failure as failure:
                    if failure.reason.kind not in ("compile-error", "gpu-error"):
                        raise
            if not quick:
                raise Failure(Reason("compile-error", "compiles", "no configuration runs on this GPU"))
            chosen = tapes[min(quick)[1]]
            drawn = self._drawn(chosen, "fresh") or drawn
        answer = self._prepared(chosen, drawn, timed=True)
        self._compare(chosen, drawn, (-2, 0), answer["outputs"], "wrong-value")
        found = self._clocked(few=False)
        for sample in found["samples"]:
            made = self._asked({"do": "sample", "sample": sample, "room": drawn.request["room"]}, SECONDS_TO_TIME)
            self._compare(chosen, drawn, (sample[0], sample[1]), made["outputs"], "skipped-work")
        facts = {name: found[name] for name in ("median_ms", "spread_ms", "replays", "sets", "method")}
        return {
            **facts,
            "verified": len(found["samples"]) + 1,
            "configurations": len(tapes),
            "configuration": next(number for number, one in enumerate(tapes) if one is chosen),
            "host_reads": len(chosen.tape["host_reads"]),
        }

    def fresh_inputs(self, recorded: Recorded) -> _Drawn | None:
        """Return the mixtures of inputs that the candidate's launches were timed on."""
        return self._drawn(recorded, "fresh")

    def _clocked(self, *, few: bool) -> dict[str, Any]:
        with alone_on_gpu():
            found = self._asked({"do": "clock", "seed": self._seed % 2**31, "few": few}, SECONDS_TO_TIME)
        if not found["guards"]:
            raise Failure(_out_of_bounds())
        return found

    def _drawn(self, recorded: Recorded, draw: Draw) -> _Drawn | None:
        """Put two draws into the arena. Return None where their shapes differ from the recorded ones."""
        seeds = (self._seed, self._seed + 2, self._seed)
        made = [self._values(recorded, seed, draw, number) for number, seed in enumerate(seeds)]
        if not all(same_structure(one["inputs"], recorded.inputs) for one in made):
            return None
        one, other, held = made
        arena = self._child.arena
        first, gradients = lay(one["inputs"], arena), lay(_numbered(one["cotangents"]), arena, COTANGENTS_AT)
        second = lay(other["inputs"], arena, first.room)
        more = lay(_numbered(other["cotangents"]), arena, second.room)
        places = [{**first.places, **gradients.places}, {**second.places, **more.places}]
        names = list(places[0])
        dtypes = dict(zip(names, mixable(one, ()), strict=True))
        fixed = mixable(one["inputs"], self._task.spec.fixed)
        dtypes |= dict(zip(names[: len(fixed)], fixed, strict=True))
        draws = tuple(
            dict(zip(names, (bytes_of(tensor) for tensor in storages_in(values)), strict=True)) for values in made[:2]
        )
        seed = self._seed % 2**31
        constants, room = put_constants(recorded.constants, arena, more.room)
        lengths = {name: [at, recorded.constants[name].numel()] for name, at in constants.items()}
        request = {
            "draws": [dict(zip(names, one.values(), strict=True)) for one in places], "dtypes": dtypes, "seed": seed,
            "constants": lengths, "room": room, "outputs": recorded.references, "tape": recorded.tape,
            "allow_any": self._task.rules.torch == "any", "device": self._device,
        }  # fmt: skip
        return _Drawn(held, names, FreshInputs((draws[0], draws[1]), dtypes, seed), request)

    def _values(self, recorded: Recorded, seed: int, draw: Draw, number: int) -> dict[str, Any]:
        inputs = self._task.inputs(recorded.trial, seed, draw, own_parameters=recorded.own_parameters)
        inputs = inputs_in(recorded.circumstance, inputs)
        if recorded.tape["host_reads"]:  # the launches may depend on integers that the host read, such as lengths
            kept = {name: value for name, value in recorded.inputs.items() if _is_integer(value)}
            inputs = {**inputs, **{name: value.clone() for name, value in kept.items()}}
        cotangents: list[Tensor | None] = []
        if recorded.gradients is not None:
            generator = torch.Generator().manual_seed(seed % 2**31 + number % 2)
            cotangents = [
                torch.randn(one.shape, generator=generator).to(one.dtype) if one.is_floating_point() else None
                for one in recorded.outputs
            ]
        return {"inputs": inputs, "cotangents": cotangents}

    def _prepared(self, recorded: Recorded, drawn: _Drawn, *, timed: bool) -> dict[str, Any]:
        answer = self._asked({"do": "prepare", **drawn.request, "timed": timed}, SECONDS_TO_PREPARE)
        if not answer["guards"]:
            raise Failure(_out_of_bounds())
        if answer["changed_inputs"] and not self._task.rules.in_place:
            raise Failure(Reason("changes-input", "safe", "a kernel changes an input", "Write results to new memory."))
        return answer

    def _asked(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            answer = self._child.ask(request, seconds)
        except Ended as ended:
            kind = "timeout" if "still running" in str(ended) else "gpu-error"
            message = f"on the GPU a replay of the launches {ended}"
            raise Failure(Reason(kind, _STAGES.get(kind, "runs"), message, _ADVICE.get(kind, ""))) from None
        if "stopped" in answer:
            fault = answer["stopped"]
            kind, message = str(fault["kind"]), str(fault["message"])[:600]
            reason = Reason(kind, _STAGES.get(kind, "safe"), f"on the GPU: {message}", _ADVICE.get(kind, ""))
            raise Failure(reason, open=kind == "not-portable")
        return answer

    def _compare(
        self, recorded: Recorded, drawn: _Drawn, at: tuple[int, int], facts: Sequence[Mapping[str, Any]], kind: str,
        draw: Draw = "fresh",
    ) -> None:  # fmt: skip
        inputs, cotangents = drawn.at(*at)
        expected = self._expected(recorded, inputs, cotangents)
        made = [read_output(one, self._child.arena).to(expected.exact[0].device) for one in facts]
        outputs = made[: len(recorded.outputs)]
        gradients = dict(zip(recorded.gradients or {}, made[len(recorded.outputs) :], strict=True))
        # At zeros and between equal values, a gradient is a choice.
        wrong = expected.wrong(outputs, gradients if draw not in ("spiked", "sparse", "planted") else {})
        if wrong is not None:
            raise Failure(replace(_wrong(wrong, kind, at[0]), draw=draw))

    def _expected(self, recorded: Recorded, inputs: Inputs, cotangents: Sequence[Tensor | None]) -> Expected:
        given = list(cotangents) if recorded.gradients is not None else None
        if self._device == "cuda":
            try:
                with alone_on_gpu():
                    moved = on_device({"inputs": inputs, "cotangents": given}, "cuda")
                    return Expected(
                        self._task, recorded.trial, moved["inputs"], gradients=given is not None,
                        cotangents=moved["cotangents"],
                    )  # fmt: skip
            except TaskError:
                torch.cuda.empty_cache()  # a definition that keeps tensors of its own on the CPU
        return Expected(self._task, recorded.trial, inputs, gradients=given is not None, cotangents=given)


def on_device(value: Any, device: str) -> Any:
    """Return tensors on a device, with their strides; also inside lists and dictionaries."""
    if isinstance(value, Tensor):
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
        return value.to(device) if 0 in value.stride() else made.copy_(value)
    if isinstance(value, Mapping):
        return {name: on_device(one, device) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_device(one, device) for one in value)
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point()


def _numbered(values: Sequence[Tensor | None]) -> dict[str, Any]:
    return {str(number): one for number, one in enumerate(values)}


def _out_of_bounds() -> Reason:
    return Reason("out-of-bounds", "safe", "on the GPU a kernel writes outside a tensor", _ADVICE["gpu-error"])


def _wrong(wrong: Wrong, kind: str, replay: int) -> Reason:
    stage = _STAGES.get(kind, "right")
    when = "on the GPU" if kind == "wrong-value" else f"in timed replay {replay + 1}, though not in the first run"
    reason = Reason(kind, stage, f"{when}: {wrong.message}", _ADVICE[kind])
    return replace(
        reason, output=wrong.output, element=wrong.element, expected=wrong.expected, found=wrong.found, draw="fresh"
    )
