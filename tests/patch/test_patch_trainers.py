"""A patched model inside the trainers that people use: transformers, PEFT, TRL, DDP and FSDP."""

from __future__ import annotations

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
