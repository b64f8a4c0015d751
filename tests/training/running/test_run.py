"""A training run: its losses, resuming, and stopping."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tilesmith.models import llama
from tilesmith.models.llama import parts
from tilesmith.models.versions import Version
from tilesmith.training.data.tasks import LlamaTask, OpenFoldTask
from tilesmith.training.data.tokens import DataError
from tilesmith.training.results.comparison import compared
from tilesmith.training.running import checkpoint, options
from tilesmith.training.running.distributed import Place
from tilesmith.training.running.gradient_guard import GradientError
from tilesmith.training.running.phase_times import phase_milliseconds
from tilesmith.training.running.run import Record, Run, Settings, SettingsError, captured_by

CPU = Place(torch.device("cpu"))
TINY = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "seq_len": 8}


class Changed(LlamaTask):
    """A task in which one version has other parts."""

    def __init__(self, variant: str, **other_parts: Any) -> None:
        super().__init__(TINY)
        self._variant, self._other_parts = variant, other_parts

    def version(self, name: str) -> Version[llama.Parts]:
        version = super().version(name)
        return replace(version, parts=replace(version.parts, **self._other_parts)) if name == self._variant else version


def losses(task: LlamaTask, **settings: Any) -> list[float]:
    run = Run(task, Settings(**settings), CPU)
    record = run.train()
    run.close()
    return record.losses


def test_loss_falls_towards_the_best_possible_loss() -> None:
    task = LlamaTask({"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "seq_len": 32})
    found = losses(task, num_steps=60, learning_rate=1e-2, variant="v2")
    assert task.best_loss is not None
    assert found[0] == pytest.approx(6.9, abs=0.1)
    assert task.best_loss < found[-1] < 4.5


@pytest.mark.parametrize("variant", ["v2", "v3", "v4"])
def test_every_version_has_the_same_losses(variant: str) -> None:
    task = LlamaTask(TINY)
    expected = losses(task, num_steps=8, batch_size=2, learning_rate=1e-2)
    assert losses(task, num_steps=8, batch_size=2, learning_rate=1e-2, variant=variant) == pytest.approx(
        expected, abs=2e-5
    )


def test_accumulated_micro_batches_give_the_same_losses() -> None:
    task = LlamaTask(TINY)
    expected = losses(task, num_steps=4)
    assert losses(task, num_steps=4, accumulate=4) == pytest.approx(expected, abs=1e-5)


def test_bf16_losses_match_float32_within_rounding() -> None:
    task = LlamaTask(TINY)
    expected = losses(task, num_steps=4, batch_size=1)
    found = losses(task, num_steps=4, batch_size=1, dtype="bfloat16")
    assert found == pytest.approx(expected, abs=0.05)
    assert found != pytest.approx(expected, abs=1e-6), "the run computed in bf16"


@pytest.mark.parametrize("resumed_as", ["v1", "v2"])
def test_resumed_run_has_the_same_losses(tmp_path: Path, resumed_as: str) -> None:
    task, settings = LlamaTask(TINY), Settings(num_steps=12, learning_rate=1e-2)
    whole = Run(task, settings, CPU)
    whole.train()
    part = Run(task, settings, CPU)
    part.train(until=7)
    checkpoint.write(tmp_path / "checkpoint", part.checkpoint())
    resumed = checkpoint.read(tmp_path / "checkpoint")
    again = Run(
        options.resumed_task("llama", resumed, {}),
        options.resumed_settings(resumed, {"variant": resumed_as}, task.versions),
        CPU,
        resumed,
    )
    again.train()
    if resumed_as == "v1":
        assert again.record.losses == whole.record.losses
    else:
        assert again.record.losses == pytest.approx(whole.record.losses, abs=1e-5)


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"hidden_dim": 32}, "hidden_dim is 32, but the checkpoint has 16; omit it"),
        ({"seed": 5}, "seed is 5, but the checkpoint has 0"),
        ({"data": Path("text")}, "data is text, but the checkpoint has None"),
    ],
)
def test_resuming_rejects_other_sizes_seed_data_and_no_steps_left(wanted: dict[str, Any], complaint: str) -> None:
    run = Run(LlamaTask(TINY), Settings(num_steps=1), CPU)
    run.train()
    taken = run.checkpoint()
    with pytest.raises(SettingsError, match=complaint):
        options.resumed_task("llama", taken, wanted)
    with pytest.raises(SettingsError, match="num_steps is 1, but the checkpoint is already at step 1"):
        options.resumed_settings(taken, {}, llama.VERSION_NAMES)


@cache
def taken_after_a_step() -> checkpoint.Checkpoint:
    run = Run(LlamaTask(TINY), Settings(num_steps=1), CPU)
    run.train()
    return run.checkpoint()


def facts(**changes: Any) -> checkpoint.Checkpoint:
    """Return a checkpoint with changed facts; a dotted name changes an option of `config` or `settings`."""
    taken = replace(taken_after_a_step(), facts={**taken_after_a_step().facts})
    for name, value in changes.items():
        place, _, option = name.partition("__")
        if option:
            taken.facts[place] = {**taken.facts[place], option: value}
        else:
            taken.facts[place] = value
    return taken


@pytest.mark.parametrize(
    "changes",
    [
        {"model": 5}, {"model": None}, {"config": []}, {"config": {}}, {"settings": None}, {"settings": {}},
        {"losses": "text"}, {"losses": [float("nan")]}, {"losses": [True]}, {"losses": {}},
        {"config__hidden_dim": "16"}, {"config__hidden_dim": 16.0}, {"config__hidden_dim": None},
        {"config__hidden_dim": -16}, {"config__num_heads": 3}, {"config__seed": -1}, {"config__seed": 2**70},
        {"config__surplus": 1}, {"config__data": 5}, {"config__rope_base": "text"},
        {"settings__variant": "v9"}, {"settings__variant": 1}, {"settings__batch_size": 0}, {"settings__dtype": "int8"},
        {"settings__learning_rate": float("inf")}, {"settings__surplus": 1}, {"settings__shard": "yes"},
        {"settings__batch_size": True}, {"settings__accumulate": -1},
    ],
    ids=str,
)  # fmt: skip
def test_resuming_rejects_unusable_facts_in_one_line(changes: dict[str, Any]) -> None:
    damaged = facts(**changes)

    def resumed() -> None:
        options.resumed_task("llama", damaged, {})
        options.resumed_settings(damaged, {"num_steps": 9}, llama.VERSION_NAMES)

    with pytest.raises(checkpoint.CheckpointError) as caught:
        resumed()
    assert "\n" not in str(caught.value)


def test_resuming_needs_the_same_bytes_but_not_the_same_path(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(100)))
    run = Run(LlamaTask(TINY, text), Settings(num_steps=1), CPU)
    run.train()
    taken = run.checkpoint()
    moved = text.rename(tmp_path / "moved")
    assert options.resumed_task("llama", taken, {"data": moved}).config["data"] == str(moved)
    moved.write_bytes(bytes(range(1, 101)))
    with pytest.raises(DataError, match="moved is not the file that the checkpoint was trained on"):
        options.resumed_task("llama", taken, {"data": moved})


def test_sharded_run_resumes_unsharded_in_one_process() -> None:
    taken = facts(settings__shard=True)
    assert not options.resumed_settings(taken, {"num_steps": 9}, llama.VERSION_NAMES).shard


def test_rejects_sizes_beyond_the_memory_before_building_the_model() -> None:
    for sizes in ({"hidden_dim": 100_000_000}, {"num_layers": 10**9}, {"hidden_dim": 10**20}):
        with pytest.raises(SettingsError, match="the sizes are too large"):
            Run(LlamaTask({**TINY, **sizes}), Settings(), CPU)


@pytest.mark.parametrize("task", [LlamaTask({**TINY, "num_layers": 3}), OpenFoldTask({"num_blocks": 3})])
def test_parameter_count_is_that_of_the_model(task: LlamaTask | OpenFoldTask) -> None:
    built = task.model(task.version("v1"))  # type: ignore[arg-type]  # each task takes its own versions
    assert task.parameter_count() == sum(parameter.numel() for parameter in built.parameters())


def test_missing_gradient_stops_the_run_at_its_first_step() -> None:
    def cut(x: Tensor, weight: Tensor) -> Tensor:
        return parts.separately_gated(x, weight).detach()

    run = Run(Changed("v1", gated=cut), Settings(num_steps=5), CPU)
    before = run.model.get_parameter("embedding").detach().clone()
    with pytest.raises(GradientError, match=r"no gradient reaches layers\.0\.feed_forward_norm, layers\.0\.gate_up"):
        run.train()
    assert torch.equal(run.model.get_parameter("embedding"), before), "the run made no update"


def test_gradient_that_is_not_finite_stops_the_run_and_is_named() -> None:
    calls = 0

    def breaking(x: Tensor, weight: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            weight = weight * 1.0
            weight.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]
        return parts.separately_gated(x, weight)

    run = Run(Changed("v1", gated=breaking), Settings(num_steps=30), CPU)
    with pytest.raises(GradientError, match=r"layers\.0\.gate_up is not finite, first in step 1 to 4"):
        run.train()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_between_two_parts_of_a_run_ends_it(number: signal.Signals) -> None:
    """A run that saves every few steps trains in parts; a signal in the last step of a part counts, too."""
    run = Run(LlamaTask(TINY), Settings(num_steps=50), CPU)
    before = signal.getsignal(number)
    with run.stoppable():
        run.train(lambda record: os.kill(os.getpid(), number), until=4)
        assert not run.record.interrupted, "all steps of this part are done"
        run.train(until=8)
    record = run.record
    assert (record.interrupted, run.steps_done) == (True, 5)
    assert signal.getsignal(number) is before


def test_interrupt_ends_the_run_after_the_current_step() -> None:
    run = Run(LlamaTask(TINY), Settings(num_steps=50), CPU)

    def interrupt(record: Record) -> None:
        if not record.interrupted:
            os.kill(os.getpid(), signal.SIGINT)

    record = run.train(interrupt)
    assert record.interrupted
    assert 0 < len(record.losses) < 50
    assert len(run.checkpoint().facts["losses"]) == len(record.losses)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("settings", "place", "complaint"),
    [
        ({"batch_size": 9, "accumulate": 2}, CPU, "batch_size is 9, but must be divisible by 1 processes times 2"),
        ({"batch_size": 6}, Place(CPU.device, 0, 4), "by 4 processes times 1"),
        ({"shard": True}, CPU, "shard needs several processes"),
    ],
)
def test_rejects_batches_that_cannot_be_divided(settings: dict[str, Any], place: Place, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        Run(LlamaTask(TINY), Settings(**settings), place)


def test_result_holds_the_times_of_the_phases() -> None:
    run = Run(LlamaTask(TINY), Settings(num_steps=6), CPU)
    run.train()
    result = run.result(phase_milliseconds(run))
    assert len(result["losses"]) == 6, "timed steps are not recorded"
    assert all(result[f"{phase}_ms"] > 0 for phase in ("forward", "backward", "optimizer"))
    assert result["samples_per_s"] == pytest.approx(8000 / result["step_ms"])
    assert result["tokens_per_s"] == pytest.approx(8 * result["samples_per_s"])
    assert result["parameters"] == sum(one.numel() for one in run.model.parameters())
    assert result["best_loss"] == pytest.approx(1.8158, abs=1e-4)


def test_version_that_fails_parity_is_not_timed() -> None:
    def uncausal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return parts.plain_attention(q.flip(2), k.flip(2), v.flip(2)).flip(2)

    from contextlib import nullcontext

    result = compared(
        Changed("v2", attention=uncausal),
        Settings(num_steps=2),
        ["v1", "v2"],
        CPU,
        lambda run: nullcontext(lambda record: None),
    )
    assert [one["passed"] for one in result["parity"]] == [True, False]
    assert [run["variant"] for run in result["variants"]] == ["v1"]


@pytest.mark.parametrize("part", ["gated", "add_norm", "rotary"])
def test_parity_fails_for_an_error_of_1e_4_in_one_part(part: str) -> None:
    right = getattr(parts.V1.parts, part)

    def off(*arguments: Any) -> Any:
        made = right(*arguments)
        return made * 1.0001 if isinstance(made, Tensor) else (made[0] * 1.0001, *made[1:])

    from tilesmith.training.results.parity import parities

    (parity,) = parities(Changed("v2", **{part: off}), ["v2"], torch.float32, CPU, 2)
    assert not parity.passed


def test_parity_fails_for_a_missing_gradient() -> None:
    def cut(x: Tensor, weight: Tensor) -> Tensor:
        return parts.jointly_gated(x, weight.detach())

    from tilesmith.training.results.parity import parities

    (parity,) = parities(Changed("v2", gated=cut), ["v2"], torch.float32, CPU, 2)
    assert not parity.passed
    assert parity.worst_gradient == "layers.0.gate_up"
    assert parity.logits_error <= parity.logits_allowed


@pytest.mark.gpu
@pytest.mark.parametrize(("variant", "captured"), [("v3", "passes"), ("v4", "step")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_captured_run_has_the_losses_of_v1(dtype: str, variant: str, captured: str) -> None:
    task, place = LlamaTask({"num_layers": 2}), Place(torch.device("cuda", 0))
    settings = Settings(num_steps=30, dtype=dtype)
    first = Run(task, settings, place)
    last = Run(task, replace(settings, variant=variant), place)
    assert last.captured == captured
    expected, found = first.train().losses, last.train().losses
    assert found == pytest.approx(expected, abs=1e-3 if dtype == "float32" else 0.05)
    assert expected[-1] < expected[0] - 1
    assert phase_milliseconds(last)["optimizer"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["v3", "v4"])
def test_eager_run_captures_nothing_and_has_the_same_losses(variant: str) -> None:
    task, place = LlamaTask({"num_layers": 2}), Place(torch.device("cuda", 0))
    settings = Settings(variant=variant, num_steps=10)
    captured, eager = Run(task, settings, place), Run(task, replace(settings, eager=True), place)
    assert eager.captured == "nothing"
    assert eager.result({})["captured"] == "nothing"
    assert eager.train().losses == pytest.approx(captured.train().losses, abs=1e-3)


@pytest.mark.parametrize(
    ("variant", "captured"), [("v1", "nothing"), ("v2", "nothing"), ("v3", "passes"), ("v4", "step")]
)
def test_only_one_process_on_a_gpu_captures_graphs(variant: str, captured: str) -> None:
    version, gpu = LlamaTask({}).version(variant), torch.device("cuda", 0)
    assert captured_by(version, Settings(), Place(gpu)) == captured
    assert captured_by(version, Settings(eager=True), Place(gpu)) == "nothing"
    assert captured_by(version, Settings(), Place(gpu, processes=2)) == "nothing"
    assert captured_by(version, Settings(), CPU) == "nothing"
