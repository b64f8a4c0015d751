"""Replay a recorded call on inputs that the candidate never saw, and say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilesmith.lab.judge.expected import Expected, Wrong
from tilesmith.lab.judge.isolation.children import Child
from tilesmith.lab.judge.recorded import (
    COTANGENT_SEED,
    COTANGENTS_AT,
    SEEN,
    Failure,
    Recorded,
    put_constants,
    same_structure,
)
from tilesmith.lab.judge.recording.circumstances import TURNED, inputs_in, lowered
from tilesmith.lab.judge.replaying.memory import CONSTANT, INPUT
from tilesmith.lab.judge.replaying.replay import digest
from tilesmith.lab.judge.shared_values import lay, read_output
from tilesmith.lab.judge.task import Draw, Task
from tilesmith.lab.judge.verdict import Reason
from tilesmith.spec import Inputs
from tilesmith.toolchain.versions import sums_become_tf32_dots

FAR_OFF = 16.0  # times the allowed error: no accident of rounding
_ADVICE = {
    "out-of-bounds": "Mask off the lanes outside the tensor, or correct the offsets.",
    "not-a-kernel": "Write kernels in Triton's language alone.",
    "not-portable": "Pass tensors, numbers and constants to kernels, and use names of triton.language in them.",
    "launch-option": "Launch with num_warps, num_stages and other choices of the same program only.",
    "kernel-error": "Correct the line that the message names.",
    "needs-gpu": "Judge this candidate on a machine with a GPU.",
    "torch-computes": "Compute it in a kernel. PyTorch may allocate, fill, copy, cast, concatenate and make views.",
}
_STAGES = {
    "not-a-kernel": "honest",
    "not-portable": "honest",
    "launch-option": "honest",
    "torch-computes": "honest",
    "kernel-error": "runs",
}
_OPEN = ("needs-gpu", "not-portable")


class Replayer:
    """The clean process of one judgement."""

    def __init__(self, task: Task, child: Child, seed: int) -> None:
        self._task = task
        self._child = child
        self._seed = seed
        self.doubtful: list[Recorded] = []  # with hints to the compiler that are false
        self._known: list[tuple[Any, Inputs, Expected]] = []  # the last ones: configurations of an autotuner share them

    def judge(self, recorded: Recorded, draw: Draw) -> bool:
        """Replay on one draw. Return False where the draw decides nothing. Raises Failure."""
        recorded = recorded.variants.get(draw, recorded)
        gradients = recorded.gradients is not None
        # A host that reads values may launch something else for each draw: judge its launches on the draw it saw.
        was_seen = draw in ("spiked", "sparse") and bool(recorded.tape["host_reads"])
        inputs, expected = self._expected(recorded, SEEN[draw] if was_seen else draw)
        if not same_structure(inputs, recorded.inputs):
            return False  # the definition's inputs have other shapes for other values
        if draw != "fresh" and not expected.is_well_conditioned:
            return False
        if draw == "sparse" and not all(one.is_floating_point() for one in expected.plain):
            return False  # among equal values, several indices may be right
        try:
            self._judged(recorded, inputs, expected, draw)
        except Failure as failure:
            if not self._differs_only_by_integers(recorded, inputs, failure):
                raise
            kept = {
                name: inputs[name] if not isinstance(value, Tensor) or value.is_floating_point() else value
                for name, value in recorded.inputs.items()
            }
            again = Expected(self._task, recorded.trial, kept, gradients=gradients, cotangent_seed=self._seed % 2**31)
            self._judged(recorded, kept, again, draw)
        return True

    def _expected(self, recorded: Recorded, draw: Draw) -> tuple[Inputs, Expected]:
        """Return the inputs of a draw, and what the definition gives for them."""
        gradients = recorded.gradients is not None
        key = (recorded.trial, draw, recorded.own_parameters, gradients, recorded.circumstance)
        known = next((one for one in self._known if one[0] == key), None)
        if known is None:
            drawn = self._task.inputs(recorded.trial, self._seed, draw, own_parameters=recorded.own_parameters)
            inputs = inputs_in(recorded.circumstance, drawn)
            seed = self._seed % 2**31
            given = lowered(inputs) if recorded.circumstance.startswith(TURNED) else inputs
            expected = Expected(self._task, recorded.trial, given, gradients=gradients, cotangent_seed=seed)
            known = key, inputs, expected
            self._known = [known, *self._known[:1]]
        return known[1], known[2]

    def facts(self, recorded: Recorded, targets: tuple[str, ...], seconds: float) -> list[dict[str, Any]]:
        """Return the facts of the compiler and the memory trace about the kernels of a recorded call."""
        request = self._request("facts", recorded, recorded.inputs, None)
        answer = self._child.ask({**request, "targets": list(targets)}, seconds)
        if "stopped" in answer:
            raise Failure(self._stopped(answer["stopped"]), open=answer["stopped"].get("kind") in _OPEN)
        kernels: list[dict[str, Any]] = answer["kernels"]
        return kernels

    def translated(self, recorded: Recorded, target: str, seconds: float) -> dict[str, Any] | None:
        """Return the error of the compiler's front end for a recorded call, with its kernel; None without one."""
        request = self._request("translate", recorded, recorded.inputs, None)
        found: dict[str, Any] | None = self._child.ask({**request, "target": target}, seconds).get("error")
        return found

    def _judged(self, recorded: Recorded, inputs: Inputs, expected: Expected, draw: Draw) -> None:
        # Kernels must be right for programs in any order: one draw in each.
        answer = self._child.ask({**self._request("replay", recorded, inputs, expected), "backwards": draw != "fresh"})
        if "stopped" in answer:
            raise Failure(self._stopped(answer["stopped"]), open=answer["stopped"].get("kind") in _OPEN)
        faults = answer["faults"]
        if faults:
            raise Failure(Reason(stage="safe", **{**faults[0], "program": tuple(faults[0]["program"])}))
        if answer["changed_inputs"] and not self._task.rules.in_place:
            raise Failure(Reason("changes-input", "safe", "a kernel changes an input", "Write results to new memory."))
        if answer["false_hints"] and all(one is not recorded for one in self.doubtful):
            self.doubtful.append(recorded)
        made = [read_output(one, self._child.arena) for one in answer["outputs"]]
        outputs = made[: len(recorded.outputs)]
        if recorded.circumstance.startswith(TURNED):
            outputs = list(lowered(dict(enumerate(outputs))).values())
        gradients = dict(zip(recorded.gradients or {}, made[len(recorded.outputs) :], strict=True))
        # At zeros and between equal values, a gradient is a choice.
        wrong = expected.wrong(outputs, gradients if draw not in ("spiked", "sparse", "planted") else {})
        if wrong is not None:
            raise Failure(self._wrong(wrong, recorded, draw))
        if recorded.performed and draw == "fresh":
            self._refuse_other_outputs(recorded)
        if answer["keeps_state"] and draw == "fresh" and not self._task.rules.in_place:
            self._refuse_state(recorded, inputs, expected)
        self._refuse_aliases(answer, recorded)
        if all(bool((one == one.flatten()[0]).all()) for one in expected.plain if one.numel()):
            return  # one value everywhere, as in a softmax of one column: nobody can tell who computes it
        self._refuse_moved(answer, inputs, expected)
        if draw == "fresh" and self._task.rules.torch == "any" and self._task.rules.must_launch:
            self._refuse_decoys(recorded, inputs, expected)

    def _refuse_state(self, recorded: Recorded, inputs: Inputs, expected: Expected) -> None:
        """Leave open what reads memory that the call before changed: a later call may give something else."""
        request = self._request("replay", recorded, inputs, expected)
        answer = self._child.ask({**request, "forgets": True})
        faults = [answer["stopped"]] if "stopped" in answer else answer["faults"]
        if faults:
            message = "a kernel reads memory that the call before changed, so later calls may give other outputs"
            place = {name: faults[0].get(name) for name in ("kernel", "file", "line")}
            reason = Reason("state", "honest", message, "Write kept memory before reading it, or leave it as it was.")
            raise Failure(replace(reason, **place), open=True)

    def _refuse_decoys(self, recorded: Recorded, inputs: Inputs, expected: Expected) -> None:
        """Refuse kernels whose results for other inputs do as well: PyTorch computes everything that matters."""
        self._child.ask(self._request("replay", recorded, recorded.inputs, None))
        answer = self._child.ask({**self._request("replay", recorded, inputs, expected), "stale": True})
        if "stopped" in answer or not any(one.numel() for one in expected.plain):
            return
        made = [read_output(one, self._child.arena) for one in answer["outputs"]]
        if expected.wrong(made[: len(recorded.outputs)]) is None:
            message = "the outputs are as right with what the kernels store for other inputs"
            raise Failure(Reason("decoy-kernel", "honest", message, "Let kernels compute a part of the task."))

    def _request(self, what: str, recorded: Recorded, inputs: Inputs, expected: Expected | None) -> dict[str, Any]:
        laid = lay(inputs, self._child.arena)
        places = dict(laid.places)
        if recorded.gradients is not None:
            cotangents = expected.cotangents if expected is not None else self._any_cotangents(recorded)
            given = {str(number): one for number, one in enumerate(cotangents)}
            places |= lay(given, self._child.arena, COTANGENTS_AT).places
        constants, room = put_constants(recorded.constants, self._child.arena, laid.room)
        return {
            "do": what,
            "tape": recorded.tape,
            "inputs": places,
            "constants": constants,
            "outputs": recorded.references,
            "allow_any": self._task.rules.torch == "any",
            "tf32": self._task.rules.tf32,
            "room": room,
            "backwards": False,
            "stale": False,
            "forgets": False,
        }

    def _any_cotangents(self, recorded: Recorded) -> list[Tensor | None]:
        return self._seen(recorded).cotangents

    def _seen(self, recorded: Recorded) -> Expected:
        """Return what was expected of the call that was recorded."""
        return Expected(
            self._task, recorded.trial, recorded.inputs, gradients=recorded.gradients is not None,
            cotangent_seed=COTANGENT_SEED,
        )  # fmt: skip

    def _differs_only_by_integers(self, recorded: Recorded, inputs: Inputs, failure: Failure) -> bool:
        """Return whether the host read integers, such as lengths, that another draw changes."""
        integers = any(isinstance(one, Tensor) and not one.is_floating_point() for one in inputs.values())
        return bool(recorded.tape["host_reads"]) and integers and failure.reason.kind != "torch-computes"

    def _stopped(self, fault: Mapping[str, Any]) -> Reason:
        kind = str(fault["kind"])
        file, line = fault.get("file") or None, fault.get("line")
        file = str(file).rpartition("/")[2] if file else None
        return Reason(
            kind, _STAGES.get(kind, "safe"), str(fault["message"])[:600], _ADVICE.get(kind, ""), file=file, line=line
        )

    def _wrong(self, wrong: Wrong, recorded: Recorded, draw: Draw) -> Reason:
        """Return why an output of the replay is wrong: the kernels, or work outside of them."""
        writer = self._writer(wrong, recorded)
        if draw == "fresh" and wrong.excess > FAR_OFF and self._was_right_by_other_work(recorded):
            message = (
                "the outputs were right for the inputs that the candidate saw, but its launches give wrong outputs for "
                f"new inputs of the same shapes: {wrong.message}"
            )
            advice = (
                "Compute everything that depends on input values in kernels, in every call: no caches of results, no "
                "NumPy, no values read on the host."
            )
            if recorded.tape["host_reads"]:
                advice += f" The host reads values: {str(recorded.tape['host_reads'][0])[:80]}."
            reason = Reason("outside-kernels", "honest", message, advice)
        else:
            reason = Reason("wrong-value", "right", wrong.message, self._advice(wrong, recorded, draw))
        return replace(
            reason, output=wrong.output, element=wrong.element, expected=wrong.expected, found=wrong.found, **writer
        )

    def _was_right_by_other_work(self, recorded: Recorded) -> bool:
        """Return whether the recorded outputs were right, and not only for values that the kernels are right for."""
        if self._seen(recorded).wrong(recorded.outputs, recorded.gradients) is not None:
            return False
        carries_values = recorded.follows_values or recorded.constants or recorded.tape["host_reads"]
        return bool(carries_values) or self._wrong_on_seen(recorded) is not None

    def _wrong_on_seen(self, recorded: Recorded) -> Wrong | None:
        """Return what is wrong with a replay on the inputs that the candidate saw."""
        answer = self._child.ask(self._request("replay", recorded, recorded.inputs, None))
        if "stopped" in answer:
            raise Failure(self._stopped(answer["stopped"]), open=answer["stopped"].get("kind") in _OPEN)
        made = [read_output(one, self._child.arena) for one in answer["outputs"]]
        count = len(recorded.outputs)
        gradients = dict(zip(recorded.gradients or {}, made[count:], strict=False))
        return self._seen(recorded).wrong(made[:count], gradients)

    def _advice(self, wrong: Wrong, recorded: Recorded, draw: Draw) -> str:
        if wrong.found is not None and wrong.found != wrong.found:
            if draw == "wide":
                return "Large inputs overflow: subtract the maximum before exp, or accumulate in float32."
            return "New memory holds NaN: an element that no program stores stays NaN. Check the mask and the grid."
        texts = [str(kernel.get("text")) for kernel in recorded.tape["kernels"]]
        dots = any("dot(" in text for text in texts)
        if dots and recorded.trial.dtype_name == "float32" and not self._task.rules.tf32:
            return 'tl.dot rounds float32 to tf32 by default: pass input_precision="ieee" or "tf32x3".'
        sums = any("sum(" in text and ("expand_dims" in text or "None" in text) for text in texts)
        if sums and recorded.trial.dtype_name == "float32" and not self._task.rules.tf32 and sums_become_tf32_dots():
            return (
                "Triton turns tl.sum(a[:, :, None] * b[None, :, :], 1) into a dot of tf32 on NVIDIA GPUs: call tl.dot "
                'with input_precision="ieee", or swap the factors.'
            )
        if draw == "small":
            return "The error shows with inputs of about a thousandth: is an epsilon missing?"
        if draw == "spiked":
            return "The error shows where one element of a row is a thousand times larger, or rows differ in magnitude."
        if draw == "sparse":
            return "The error shows where elements are zero, or equal to each other."
        if draw == "planted":
            return "The error shows where elements have values that stand in the candidate's text."
        if draw == "mirrored":
            return "The task draws inputs that are never negative; the definition takes negative ones too."
        if draw == "wide":
            return "The error shows with large inputs: accumulate in float32, and avoid differences of large numbers."
        return "Compare the program and line above with the definition for this element."

    def _writer(self, wrong: Wrong, recorded: Recorded) -> dict[str, Any]:
        """Return the kernel, program and line that stored the wrong element."""
        if wrong.element is None:
            return {}
        names = [f"the gradient of {name}" for name in recorded.gradients or {}]
        count = len(recorded.outputs)
        outputs = ["the output"] if count == 1 else [f"output {number}" for number in range(count)]
        try:
            number = [*outputs, *names].index(wrong.output)
        except ValueError:
            return {}
        request = {"do": "writer", "reference": recorded.references[number], "index": list(wrong.element)}
        found = self._child.ask(request).get("writer")
        return {**found, "program": tuple(found["program"])} if found else {}

    def _refuse_other_outputs(self, recorded: Recorded) -> None:
        """Refuse outputs that were wrong though the replay is right: kernels are wrong for the values that the
        candidate saw, or something outside of the launches changed the outputs."""
        wrong = self._seen(recorded).wrong(recorded.outputs, recorded.gradients)
        if wrong is not None:
            by_kernels = self._wrong_on_seen(recorded)
            if by_kernels is not None:
                raise Failure(self._wrong(by_kernels, recorded, "seen"))
            message = f"the launches are right, but something else changes what the candidate returns: {wrong.message}"
            raise Failure(
                Reason(
                    "outside-kernels", "honest", message, "Let kernels alone write the outputs.", output=wrong.output,
                    element=wrong.element, expected=wrong.expected, found=wrong.found,
                )
            )  # fmt: skip

    def _refuse_aliases(self, answer: Mapping[str, Any], recorded: Recorded) -> None:
        if any(one["is_input"] for one in answer["outputs"]) and not self._task.rules.in_place:
            message = "an output shares memory with an input"
            raise Failure(Reason("alias", "honest", message, "Return new memory."))
        storages = recorded.tape["storages"]
        if any(storages[reference[0]]["kind"] == "constant" for reference in recorded.references):
            message = "an output lies in memory from before the call, so the next call changes it"
            raise Failure(Reason("alias", "honest", message, "Allocate the output in the call that returns it."))

    def _refuse_moved(self, answer: Mapping[str, Any], inputs: Inputs, expected: Expected) -> None:
        """Refuse results that PyTorch moved into place: a copy of the answer, or elements that no kernel stored."""
        launches = answer["launches"]
        if self._task.rules.must_launch and not launches:
            message = "no kernel launch contributes to the outputs"
            raise Failure(Reason("no-launch", "honest", message, "Launch a kernel that computes the outputs."))
        if self._task.rules.torch == "any" and self._task.rules.must_launch and all(launches):
            message = "the kernels only copy or fill memory; PyTorch computes everything"
            raise Failure(Reason("decoy-kernel", "honest", message, "Let kernels compute a part of the task."))
        known = {digest(one) for one in inputs.values() if isinstance(one, Tensor)}
        for number, plain in enumerate(expected.plain if self._task.rules.torch == "movement" else ()):
            found = digest(plain)
            if plain.numel() > 1 and found in answer["moved"] and found not in known:
                by = answer["moved"][found]
                message = f"PyTorch computes {expected.output_name(number)} ({by}); a kernel only copies it"
                raise Failure(Reason("torch-computes", "honest", message, _ADVICE["torch-computes"]))
        if answer["reordering"] and _only_permutes(inputs, expected.plain):
            by = answer["reordering"][0]
            message = f"PyTorch moves the elements into another order ({by}), which is what the task wants of a kernel"
            raise Failure(Reason("torch-computes", "honest", message, "Read the inputs by their strides, in a kernel."))
        for number, (facts, plain) in enumerate(zip(answer["outputs"], expected.plain, strict=False)):
            if "writers_at" not in facts or not plain.numel():
                continue
            at = facts["writers_at"]
            writers = np.array(self._child.arena.bytes_at(at, plain.numel())).reshape(plain.shape)
            moved = (writers == INPUT) | (writers == CONSTANT)
            same = np.zeros_like(moved)
            for one in inputs.values():
                if isinstance(one, Tensor) and one.shape == plain.shape:
                    same |= (one == plain).numpy() if one.dtype == plain.dtype else False
            alone = moved & ~same
            if alone.any():
                index = tuple(int(one[0]) for one in np.nonzero(alone))
                message = f"element {list(index)} of {expected.output_name(number)} was not stored by a kernel"
                raise Failure(
                    Reason(
                        "not-by-a-kernel", "honest", message, "Let a kernel store every element of the output.",
                        output=expected.output_name(number), element=index,
                    )
                )  # fmt: skip
            if (writers == 0).any():
                message = f"{expected.output_name(number)} has elements that nobody stored"
                raise Failure(Reason("uninitialised", "safe", message, "Let a kernel store every element."))


def _only_permutes(inputs: Inputs, outputs: Sequence[Tensor]) -> bool:
    """Return whether each output has exactly the elements of one contiguous input, in whatever order."""
    given = [one for one in inputs.values() if isinstance(one, Tensor)]
    if not all(one.is_contiguous() for one in given):
        return False  # a copy in the usual order is then no cheat
    return bool(outputs) and all(any(_is_permuted(one, output) for one in given) for output in outputs)


def _is_permuted(one: Tensor, other: Tensor) -> bool:
    same = one.dtype == other.dtype and one.numel() == other.numel()
    return same and torch.equal(one.flatten().sort().values, other.flatten().sort().values)
