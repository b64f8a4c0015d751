"""Replay a recorded call on the GPU, on inputs that the candidate never saw, and say what is wrong."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tilesmith.lab.judge.expected import Wrong
from tilesmith.lab.judge.isolation.children import Child
from tilesmith.lab.judge.recorded import Failure, Recorded
from tilesmith.lab.judge.replayed import Replayer
from tilesmith.lab.judge.task import Draw, Task
from tilesmith.lab.judge.timing.timed import DeviceJudge
from tilesmith.lab.judge.verdict import Reason
from tilesmith.spec import Inputs

MOST_BYTES = 256 << 20  # of a tape whose launches are tried with other results
_KERNEL = "Let a kernel store every element of the output."


class DeviceReplayer(Replayer):
    """The clean process of one judgement, on a GPU."""

    def __init__(self, task: Task, child: Child, seed: int, device: str) -> None:
        super().__init__(task, child, seed)
        self._device_judge = DeviceJudge(task, child, seed, device)

    def judge(self, recorded: Recorded, draw: Draw) -> bool:
        """Replay on one draw. Return False where the draw decides nothing. Raises Failure."""
        recorded = recorded.variants.get(draw, recorded)
        self._refuse_kept_outputs(recorded)
        decided = self._device_judge.check(recorded, draw)
        if decided and draw == "fresh":
            if recorded.performed:
                self._refuse_other_outputs(recorded)
            if sum(one["bytes"] for one in recorded.tape["storages"]) <= MOST_BYTES:
                self._refuse_work_of_pytorch(recorded)
        return decided

    def input_bytes(self, recorded: Recorded) -> dict[str, Tensor] | None:
        """Return the bytes of each input of a trial, as the replay gets them."""
        drawn = self._device_judge.fresh_inputs(recorded)
        return None if drawn is None else drawn.fresh.at(-2, 0)

    def kernel_facts(self, recorded: Recorded, target: str) -> list[dict[str, Any]]:
        """Return the facts of the CUDA kernels of a trial, in the form of those of Triton. Raises Ended."""
        answer = self._child.ask({"do": "kernel_facts", "tape": recorded.tape})
        found = []
        for one in answer.get("kernels", ()):
            facts = {
                "device": target, "registers": one["registers"], "spill_bytes": one["local_bytes"],
                "shared_bytes": one["shared_bytes"], "occupancy": None, "predicted_us": None, "limited_by": None,
            }  # fmt: skip
            plain = {name: one[name] for name in ("name", "line", "launches")}
            found.append({**plain, "targets": {target: facts}, "errors": {}, "findings": []})
        return found

    def _wrong_on_seen(self, recorded: Recorded) -> Wrong | None:
        return None  # this process replays on inputs that the candidate never saw only

    def _refuse_kept_outputs(self, recorded: Recorded) -> None:
        kinds = {recorded.tape["storages"][reference[0]]["kind"] for reference in recorded.references}
        if kinds - {"new"} and not self._task.rules.in_place:
            message = "an output shares memory with an input, or with memory from before the call"
            raise Failure(Reason("alias", "honest", message, "Return new memory."))

    def _refuse_work_of_pytorch(self, recorded: Recorded) -> None:
        """Refuse outputs that stay right with what the launches store for other inputs: PyTorch computes them."""
        if not self._task.rules.must_launch:
            return
        inputs, expected, (other, right, stale) = self._device_judge.exchanged(recorded)
        count = len(recorded.outputs)
        if self._task.rules.torch == "any":
            differ = any(not _same(one, two).all() for one, two in zip(other, right, strict=True))
            if differ and expected.wrong(stale[:count]) is None:
                message = "the outputs are as right with what the kernels store for other inputs"
                raise Failure(Reason("decoy-kernel", "honest", message, "Let kernels compute a part of the task."))
            return
        for number, (one, two, three) in enumerate(zip(other[:count], right, stale, strict=False)):
            alone = ~_same(one, two) & _same(two, three) & ~_given(inputs, two)
            if bool(alone.any()):
                index = tuple(int(at) for at in alone.nonzero()[0])
                name = expected.output_name(number)
                message = f"element {list(index)} of {name} was not stored by a kernel"
                raise Failure(Reason("not-by-a-kernel", "honest", message, _KERNEL, output=name, element=index))


def _same(one: Tensor, other: Tensor) -> Tensor:
    """Return where two tensors are equal; NaN equals NaN."""
    return (one == other) | ((one != one) & (other != other))


def _given(inputs: Inputs, output: Tensor) -> Tensor:
    """Return where an output has the value of an input of its shape and dtype."""
    found = output != output
    for one in inputs.values():
        if isinstance(one, Tensor) and one.shape == output.shape and one.dtype == output.dtype:
            found = found | (one.to(output.device) == output)
    return found
