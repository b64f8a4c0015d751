"""A patched model inside trainers: transformers, PEFT, QLoRA, TRL, Accelerate, DDP, FSDP, DeepSpeed.

Each test runs where its library is installed.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import VOCABULARY, assert_same, batch, counted_calls, model_of, transformers
from torch import Tensor

from rendezvous import rendezvous
from tilesmith.patch import patch, report, trainer_callback
from time_limits import end_after


def rows(count: int = 8) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, VOCABULARY, (count, 8), generator=generator).tolist()
    return [{"input_ids": one, "labels": one, "attention_mask": [1] * 8} for one in tokens]


def arguments(folder: Path, kind: Any = None, **options: Any) -> Any:
    made: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 2, "max_steps": 3, "report_to": [], "use_cpu": True,
        "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "learning_rate": 1e-2, "seed": 1, **options,
    }  # fmt: skip
    return (kind or transformers.TrainingArguments)(**made)


def logged_losses(trainer: Any) -> list[float]:
    trainer.train()
    return [one["loss"] for one in trainer.state.log_history if "loss" in one]


def test_callback_patches_a_trainers_model(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")

    def losses(*callbacks: Any) -> list[float]:
        model = model_of("llama")
        options = arguments(tmp_path, gradient_accumulation_steps=2)
        trainer = transformers.Trainer(model=model, args=options, train_dataset=rows(), callbacks=list(callbacks))
        assert (report(model) is not None) == bool(callbacks)
        return logged_losses(trainer)

    theirs = losses()
    with counted_calls() as calls:
        ours = losses(trainer_callback())
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert calls["loss"]
    assert calls["attention"]


def test_callback_takes_the_switches_of_patch(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model = model_of("llama")
    callbacks = [trainer_callback(loss=False, mlp=False)]
    transformers.Trainer(model=model, args=arguments(tmp_path), train_dataset=rows(), callbacks=callbacks)
    assert set(report(model).swapped) == {"norm", "rotary", "attention"}


def lora(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, config)


def test_adapters_of_peft_train_the_same() -> None:
    def trained(patched: bool) -> dict[str, Tensor]:
        model = lora(model_of("llama"))
        if patched:
            patch(model.get_base_model())
        loss = model.train()(**batch()).loss
        loss.backward()
        gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        assert gradients
        assert all("lora" in name for name in gradients)
        return {"loss": loss.detach(), **gradients}

    assert_same(trained(True), trained(False), 2e-5)


@pytest.mark.parametrize("with_lora", [False, True], ids=["whole", "lora"])
def test_callback_works_in_trls_sft_trainer(with_lora: bool, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    tokenizer = small_tokenizer()

    def losses(*callbacks: Any) -> list[float]:
        model = lora(model_of("llama")) if with_lora else model_of("llama")
        dataset = pytest.importorskip("datasets").Dataset.from_list(rows())
        options = arguments(tmp_path, trl.SFTConfig, dataset_kwargs={"skip_prepare_dataset": True}, bf16=False)
        trainer = trl.SFTTrainer(
            model=model, args=options, train_dataset=dataset, processing_class=tokenizer, callbacks=list(callbacks)
        )
        inner = model.get_base_model() if with_lora else model
        assert (report(inner) is not None) == bool(callbacks)
        return logged_losses(trainer)

    assert losses(trainer_callback()) == pytest.approx(losses(), rel=1e-4)


def small_tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, VOCABULARY)}}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<s>"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def _train(rank: int, environment: dict[str, str], wrap: str, results: Any) -> None:
    import os

    from tilesmith.training.running.distributed import joined

    end_after(300, 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    with joined():  # ends the group in order: gloo may hang otherwise
        results.put((rank, {patched: _losses(rank, wrap, patched) for patched in (False, True)}))


def _losses(rank: int, wrap: str, patched: bool) -> list[float]:
    model = model_of("llama")
    if patched:
        patch(model)
    wrapped = _wrapped(model, wrap)
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    tokens = batch()["input_ids"].roll(rank, 0)
    losses = []
    for _ in range(2):
        loss = wrapped.train()(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss))
    return losses


def _wrapped(model: Any, wrap: str) -> Any:
    if wrap == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_two_processes_train_the_same(wrap: str) -> None:
    """Patched before wrapping; the second step's loss sees the synchronised gradients of the first."""
    context = torch.multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with rendezvous(2) as places:
        processes = [context.Process(target=_train, args=(*place, wrap, results)) for place in enumerate(places)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    for _ in processes:
        _, losses = results.get()
        assert losses[True] == pytest.approx(losses[False], rel=1e-4)


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
    process.join(timeout=900)  # importing DeepSpeed takes minutes on a busy machine
    process.kill()
    assert process.exitcode == 0
    losses = results.get(timeout=5)
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert losses[False][2] < losses[False][0]
