"""Behaviour of `patch`: reversible, part by part, for one model only, and together with other features."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import OPERATORS, assert_same, batch, config_of, counted_calls, found, model_of, transformers
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tilesmith.patch
import tilesmith.patch.parts.attention_registry
import tilesmith.patch.patching
from tilesmith.patch import patch, report, unpatch

attention_registry: Any = tilesmith.patch.parts.attention_registry
patching: Any = tilesmith.patch.patching
PARTS = tuple(OPERATORS)


MODES: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "other device": lambda: torch.device("meta"),
}


def only(part: str) -> dict[str, bool]:
    return {one: one == part for one in PARTS}


def forwards(model: nn.Module) -> list[Any]:
    return [module.forward.__func__ for module in model.modules()]  # type: ignore[attr-defined]  # methods all


@pytest.mark.parametrize("part", PARTS)
def test_each_switch_swaps_only_its_part(part: str) -> None:
    wanted = found(model_of("llama"), **batch())
    model = patch(model_of("llama"), **only(part))
    with counted_calls() as calls:
        ours = found(model, **batch())
    assert [name for name, count in calls.items() if count] == [part]
    assert_same(ours, wanted)
    done = report(model)
    assert done is not None
    assert list(done.swapped) == [part]


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_caller_do_not_change_what_is_patched(mode: str) -> None:
    model, wanted = model_of("gemma2"), report(patch(model_of("gemma2")))
    with MODES[mode]():
        patch(model)
    assert str(report(model)) == str(wanted)


def test_unpatch_restores_methods_and_settings() -> None:
    model = model_of("llama")
    before, settings = forwards(model), model.config.to_dict()
    implementation = model.config._attn_implementation
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    assert patch(model) is model
    assert forwards(model) != before
    assert unpatch(model) is model
    assert all(now is then for now, then in zip(forwards(model), before, strict=True))
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert model.config._attn_implementation == implementation
    assert model.config.to_dict() == settings
    assert report(model) is None
    with counted_calls() as calls:
        found(model, **batch())
    assert not any(calls.values())


def test_unpatch_of_unpatched_model_changes_nothing() -> None:
    model = model_of("llama")
    before = forwards(model)
    assert forwards(unpatch(model)) == before


def test_patching_again_starts_from_the_original() -> None:
    model = patch(patch(model_of("llama")))
    assert report(model) == report(patch(model_of("llama")))
    patch(model, **only("mlp"))
    with counted_calls() as calls:
        found(model, **batch())
    assert [name for name, count in calls.items() if count] == ["mlp"]
    assert model.config._attn_implementation == "sdpa"


def test_other_model_of_the_same_configuration_stays_unpatched() -> None:
    config = config_of("llama")
    one, other = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    patch(one)
    with counted_calls() as calls:
        found(other, **batch())
        assert not any(calls.values())
        found(one, **batch())
    assert all(calls.values())


def test_settings_changed_while_patched_stay_after_unpatch() -> None:
    model = patch(model_of("llama"))
    model.config.use_cache = False
    model.config._attn_implementation = "eager"
    unpatch(model)
    assert model.config.use_cache is False
    assert model.config._attn_implementation == "eager"


def test_copy_is_patched_independently() -> None:
    model = patch(model_of("llama"))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.model.norm.weight.zero_()
    assert found(model, **batch())["loss"] != found(twin, **batch())["loss"]
    unpatch(twin)
    with counted_calls() as calls:
        found(twin, **batch())
        assert not any(calls.values())
        found(model, **batch())
    assert all(calls.values())


def test_saved_model_is_the_same_as_unpatched(tmp_path: Path) -> None:
    model = model_of("gemma3")
    names = list(model.state_dict())
    model.save_pretrained(tmp_path / "plain")
    patch(model)
    assert list(model.state_dict()) == names
    model.save_pretrained(tmp_path / "patched")
    plain, patched = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("plain", "patched"))
    assert patched == plain
    again = transformers.Gemma3ForCausalLM.from_pretrained(tmp_path / "patched")
    assert_same(found(again, **batch()), found(unpatch(model), **batch()))


def test_training_keeps_no_cache_by_default() -> None:
    model = patch(model_of("llama")).train()
    assert model.config.use_cache
    assert model(**batch()).past_key_values is None
    assert model(**batch(), use_cache=True).past_key_values is not None
    assert model.eval()(**batch(), skip_logits=True).past_key_values is not None


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    wanted = found(model_of("qwen3"), **batch(padded=True))
    model = patch(model_of("qwen3"))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with counted_calls() as calls:
        ours = found(model, **batch(padded=True))
    assert_same(ours, wanted)
    assert calls["attention"] == 4  # two layers, and each forward again


@pytest.mark.parametrize("option", ["ignore_index", "shift_labels", "num_items_in_batch", "logits_to_keep"])
def test_options_of_the_loss_mean_the_same(option: str) -> None:
    inputs: dict[str, Any] = batch()
    labels = inputs["labels"]
    inputs |= {
        "ignore_index": {"ignore_index": 7, "labels": labels.masked_fill(labels == -100, 7)},
        "shift_labels": {"shift_labels": labels.roll(-2, 1)},
        "num_items_in_batch": {"num_items_in_batch": torch.tensor(5)},
        "logits_to_keep": {"logits_to_keep": labels.shape[1]},
    }[option]
    plain, model = model_of("llama"), patch(model_of("llama"))
    wanted, ours = found(plain, **inputs), found(model, **inputs)
    assert_same(ours, wanted, 2e-5)
    assert abs(wanted["loss"] - found(plain, **batch())["loss"]) > 1e-4 or option == "logits_to_keep"
    assert (model(**inputs).logits is None) == (option != "logits_to_keep")


def test_padding_masks_stay_two_dimensional(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, attention = [], attention_registry.attention

    def seen(*arguments: Any, **named: Any) -> Any:
        shapes.append(tuple(named["mask"].shape))
        return attention(*arguments, **named)

    monkeypatch.setattr(attention_registry, "attention", seen)
    found(patch(model_of("mistral")), **batch(padded=True))
    assert shapes == [(3, 12)] * 2


def test_query_without_any_key_gets_zeros() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    mask = torch.tensor([[False, True, True, True]])
    output, _ = attention_registry.attention_of_module(None, torch.nn.Module(), q, k, v, mask)
    assert not output[0, 0].any()
    assert output[0, 1:].any(-1).all()


def test_unpatched_model_can_be_pickled_as_a_whole(tmp_path: Path) -> None:
    model = unpatch(patch(model_of("llama")))
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    assert_same(found(again, **batch()), found(model, **batch()))


@pytest.mark.parametrize("part", PARTS)
def test_pickling_a_patched_model_says_to_unpatch_it(part: str) -> None:
    model = patch(model_of("llama"), **only(part))
    with pytest.raises(TypeError, match=r"call unpatch\(model\) before, or save model.state_dict\(\)"):
        pickle.dumps(model)
    assert report(unpatch(copy.deepcopy(model))) is None


def test_release_without_a_registry_of_masks_keeps_its_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before transformers 4.53."""
    for module in (attention_registry, patching):
        monkeypatch.setattr(module, "has_mask_registry", lambda: False)
    model = patch(model_of("llama"))
    with counted_calls() as calls:
        ours = found(model, **batch(padded=True))
    assert_same(ours, found(model_of("llama"), **batch(padded=True)))
    assert not calls["attention"]
    assert "attention" in report(model).left


def test_logits_exist_in_evaluation_and_on_request() -> None:
    inputs = batch()
    model = patch(model_of("llama"))
    assert model.train()(**inputs).logits is None
    assert model(input_ids=inputs["input_ids"]).logits is not None
    assert model(**inputs, skip_logits=False).logits is not None
    assert model.eval()(**inputs).logits is not None
    assert model(**inputs, skip_logits=True).logits is None


def test_return_dict_false_returns_a_tuple() -> None:
    model = patch(model_of("llama")).train()
    loss, *rest = model(**batch(), return_dict=False)
    assert torch.equal(loss, model(**batch()).loss)
    assert all(not isinstance(one, torch.Tensor) or one.shape[-1] != 67 for one in rest)


def test_hidden_states_come_with_the_loss() -> None:
    outputs = patch(model_of("llama")).train()(**batch(), output_hidden_states=True)
    assert len(outputs.hidden_states) == 3


def test_custom_loss_function_is_called() -> None:
    model = patch(model_of("llama")).train()
    model.loss_function = lambda logits, **others: logits.sum()
    outputs = model(**batch())
    assert outputs.loss == outputs.logits.sum()


def test_head_with_hook_computes_logits() -> None:
    model = patch(model_of("llama")).train()
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    assert model(**batch()).logits is not None
    assert len(seen) == 1


def test_forward_keeps_its_signature() -> None:
    model = model_of("llama")
    before = inspect.signature(model.forward)
    assert inspect.signature(patch(model).forward) == before


def test_eager_model_returns_attentions() -> None:
    model = model_of("llama", attn_implementation="eager")
    wanted = model.eval()(batch()["input_ids"], output_attentions=True).attentions
    ours = patch(model)(batch()["input_ids"], output_attentions=True).attentions
    torch.testing.assert_close(ours, wanted)


def test_module_with_its_own_forward_stays_unchanged() -> None:
    model = model_of("llama")
    model.model.norm.forward = model.model.norm.forward
    done = report(patch(model))
    assert done is not None
    assert done.swapped["norm"] == 4
    assert "1 of 5" in done.left["norm"]


def test_unpatch_rejects_a_forward_that_was_replaced() -> None:
    model = patch(model_of("llama"))
    model.model.norm.forward = lambda x: x
    with pytest.raises(RuntimeError, match="replaced the forward of a LlamaRMSNorm"):
        unpatch(model)


def test_model_without_vocabulary_gets_the_other_parts() -> None:
    model = transformers.LlamaModel(config_of("llama"))
    done = report(patch(model))
    assert done is not None
    assert set(done.left) == {"loss"}
    with counted_calls() as calls:
        model(batch()["input_ids"])
    assert [name for name, count in calls.items() if count] == ["norm", "rotary", "mlp", "attention"]


def test_rejects_unsupported_models() -> None:
    with pytest.raises(
        ValueError,
        match=r"model is a Linear, which is not a model of transformers and .* use the modules of tilesmith\.nn",
    ):
        patch(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="model is a str"):
        patch("llama")  # type: ignore[type-var]
    with pytest.raises(ValueError, match="before it is wrapped"):
        patch(torch.compile(model_of("llama")))  # type: ignore[type-var]


def wrapped(wrapper: str) -> nn.Module:
    inside = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    if wrapper == "compile":
        return torch.compile(inside)  # type: ignore[return-value]  # a module around the module
    if wrapper == "PEFT":
        peft = pytest.importorskip("peft")
        return peft.PeftModel(inside, peft.LoraConfig(target_modules=["1"]))  # type: ignore[no-any-return]
    if wrapper == "FSDP2":
        return fully_shard(inside, mesh=init_device_mesh("cpu", (1,)))  # type: ignore[return-value]  # the module
    return getattr(nn.parallel, wrapper)(inside)  # type: ignore[no-any-return]


@pytest.mark.parametrize("wrapper", ["DataParallel", "DistributedDataParallel", "FSDP2", "compile", "PEFT"])
def test_rejects_wrappers_around_a_hand_written_model(wrapper: str) -> None:
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        model = wrapped(wrapper)
        with pytest.raises(
            ValueError, match=rf"model is a {type(model).__name__} around a model; .* inside the wrapper"
        ):
            patch(model)
        del model
    finally:
        torch.distributed.destroy_process_group()


def test_unpatch_and_report_reject_other_objects() -> None:
    with pytest.raises(TypeError, match="unpatch: model is a str"):
        unpatch("llama")  # type: ignore[type-var]
    with pytest.raises(TypeError, match="report: model is a dict"):
        report({})  # type: ignore[arg-type]


def test_package_exports_the_documented_names() -> None:
    assert tilesmith.patch.__all__ == ["FoldReport", "Report", "fold", "patch", "report", "trainer_callback", "unpatch"]
