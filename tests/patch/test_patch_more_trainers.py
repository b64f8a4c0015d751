"""A patched model in TRL's DPO and GRPO trainers, Accelerate, DeepSpeed, and with quantised weights (QLoRA).

Each test runs where its library is installed.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import assert_same, batch, counted_calls, model_of
from test_patch_trainers import arguments, logged_losses, small_tokenizer

from tilesmith.patch import patch, report, trainer_callback


def test_callback_works_in_trls_dpo_trainer(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    rows = [
        {"prompt": f"w{number} w7", "chosen": f"w{number + 1} w8", "rejected": f"w{number + 2} w9"}
        for number in range(5, 13)
    ]

    def losses(*callbacks: Any) -> list[float]:
        model = model_of("llama")
        trainer = trl.DPOTrainer(
            model=model, ref_model=model_of("llama"), args=arguments(tmp_path, trl.DPOConfig, bf16=False),
            train_dataset=datasets.Dataset.from_list(rows), processing_class=spaced_tokenizer(),
            callbacks=list(callbacks),
        )  # fmt: skip
        assert (report(model) is not None) == bool(callbacks)
        return logged_losses(trainer)

    theirs = losses()
    with counted_calls() as calls:
        ours = losses(trainer_callback())
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert calls["attention"]


def test_callback_works_in_trls_grpo_trainer(tmp_path: Path) -> None:
    """Generation is sampled, so the first rewards of both runs come from the same tokens only with the same numbers."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")

    def reward(completions: list[str], **others: Any) -> list[float]:
        return [float(len(set(one.split()))) for one in completions]

    def logged(*callbacks: Any) -> list[dict[str, float]]:
        torch.manual_seed(7)
        model = model_of("llama")
        options = arguments(
            tmp_path, trl.GRPOConfig, bf16=False, num_generations=2, max_completion_length=6, max_steps=2, beta=0.0,
            learning_rate=1e-6,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=model, reward_funcs=reward, args=options, processing_class=spaced_tokenizer(),
            train_dataset=datasets.Dataset.from_list([{"prompt": f"w{number} w7"} for number in range(5, 13)]),
            callbacks=list(callbacks),
        )  # fmt: skip
        assert (report(model) is not None) == bool(callbacks)
        trainer.train()
        return [one for one in trainer.state.log_history if "reward" in one]

    theirs = logged()
    with counted_calls() as calls:
        ours = logged(trainer_callback())
    assert len(ours) == len(theirs) == 2
    assert [one["reward"] for one in ours] == pytest.approx([one["reward"] for one in theirs])
    assert [one["grad_norm"] for one in ours] == pytest.approx([one["grad_norm"] for one in theirs], rel=1e-3)
    assert calls["attention"]


def spaced_tokenizer() -> Any:
    """Return the small tokenizer with words between spaces."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return tokenizer


def test_accelerate_trains_the_same() -> None:
    accelerate = pytest.importorskip("accelerate")

    def losses(patched: bool) -> list[float]:
        model = model_of("llama")
        if patched:
            patch(model)
        runner = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, optimiser = runner.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        found = []
        for _ in range(4):
            with runner.accumulate(model):
                loss = model.train()(**batch()).loss
                runner.backward(loss)
                optimiser.step()
                optimiser.zero_grad()
                found.append(float(loss.detach()))
        return found

    assert losses(True) == pytest.approx(losses(False), rel=1e-4)


def test_quantised_weights_with_adapters_train_the_same() -> None:
    """QLoRA: 4-bit weights are called as modules; the parts around them are ours."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    peft = pytest.importorskip("peft")

    def trained(patched: bool) -> dict[str, torch.Tensor]:
        model = model_of("llama")
        for layer in model.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name, linear in list(part.named_children()):
                    if type(linear) is torch.nn.Linear:
                        four = bitsandbytes.nn.Linear4bit(
                            linear.in_features, linear.out_features, bias=False, compute_dtype=torch.float32
                        )
                        four.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False)
                        setattr(part, name, four.to("cpu"))
        torch.manual_seed(3)
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
        adapted = peft.get_peft_model(model, config)
        if patched:
            done = report(patch(adapted.get_base_model()))
            assert set(done.swapped) == {"norm", "rotary", "mlp", "loss", "attention"}
        loss = adapted.train()(**batch()).loss
        loss.backward()
        gradients = {name: one.grad for name, one in adapted.named_parameters() if one.grad is not None}
        assert gradients
        return {"loss": loss.detach(), **gradients}

    try:
        wanted = trained(False)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        pytest.skip(f"bitsandbytes has no 4-bit layers for this machine: {error}")
    assert_same(trained(True), wanted, 1e-4)


def _train_by_deepspeed(stage: int, port: int, results: Any) -> None:
    import os

    deepspeed: Any = importlib.import_module("deepspeed")

    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", DS_ACCELERATOR="cpu"
    )
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    losses: dict[bool, list[float]] = {}
    for patched in (False, True):
        model = model_of("llama")
        if patched:
            patch(model)
        options = {"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": stage}}
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        options["zero_allow_untested_optimizer"] = True
        options["zero_force_ds_cpu_optimizer"] = False
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimiser, config=options)
        losses[patched] = []
        for _ in range(3):
            loss = engine(**batch()).loss
            engine.backward(loss)
            engine.step()
            losses[patched].append(float(loss.detach()))
    results.put(losses)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed_trains_the_same(stage: int) -> None:
    import socket

    pytest.importorskip("deepspeed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_train_by_deepspeed, args=(stage, port, results))
    process.start()
    process.join(timeout=300)
    assert process.exitcode == 0
    losses = results.get(timeout=5)
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert losses[False][2] < losses[False][0]
