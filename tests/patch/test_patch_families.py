"""Families beyond Llama's: loss and every gradient stay the same, and the report says what runs on our operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import CLASSES, CURRENT, SIZES, assert_same, batch, found, transformers

import tilesmith as ts
from tilesmith.patch import patch, report
from tilesmith.patch.families import FAMILIES, families_table

EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4, "n_group": 2,
    "topk_group": 1,
}  # fmt: skip
SHARED = {"shared_expert_intermediate_size": 16}
WINDOWS = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 5}
GPT = {"n_embd": 32, "n_layer": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CHUNKED = {"intermediate_size_mlp": 48, "attention_chunk_size": 8, "num_local_experts": 2}
ALL = {"norm", "rotary", "mlp", "loss", "attention"}
# The name before Config and ForCausalLM, options of the configuration, and the parts that run on our operators.
FOUND: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "llama4_text": ("Llama4Text", {**CHUNKED, "num_experts_per_tok": 1}, ALL),
    "granite": ("Granite", {"logits_scaling": 3.0, "residual_multiplier": 0.7}, ALL),
    "olmo2": ("Olmo2", {}, ALL),
    "olmo3": ("Olmo3", {"sliding_window": 5}, ALL),
    "glm": ("Glm", {}, ALL),
    "glm4": ("Glm4", {}, ALL),
    "cohere": ("Cohere", {"logit_scale": 0.3}, ALL),
    "cohere2": ("Cohere2", {"logit_scale": 0.3, "sliding_window": 5}, ALL),
    "starcoder2": ("Starcoder2", {}, ALL),
    "smollm3": ("SmolLM3", {}, ALL),
    "phi3": ("Phi3", {}, ALL),
    "mixtral": ("Mixtral", EXPERTS, ALL - {"mlp"}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS, ALL - {"mlp"}),
    "gpt_oss": ("GptOss", EXPERTS, ALL - {"mlp", "attention"}),
    "gpt_neox": ("GPTNeoX", {}, ALL),
    "gpt2": ("GPT2", {**GPT, "n_head": 4, "n_positions": 64}, ALL - {"rotary"}),
}
UNKNOWN: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "helium": ("Helium", {}, ALL),
    "ernie4_5": ("Ernie4_5", {}, ALL),
    "exaone4": ("Exaone4", {"sliding_window": 5}, ALL),
    "stablelm": ("StableLm", {}, ALL),
    "phi": ("Phi", {}, ALL),
    "olmo": ("Olmo", {}, ALL),
    "nemotron": ("Nemotron", {}, ALL - {"mlp"}),
    "seed_oss": ("SeedOss", {"residual_dropout": 0.0, "attention_dropout": 0.0}, ALL - {"mlp"}),
    "arcee": ("Arcee", {}, ALL - {"mlp"}),  # squared ReLU
    "hunyuan_v1_dense": ("HunYuanDenseV1", {}, ALL),
    "deepseek_v3": ("DeepseekV3", {**EXPERTS, **LATENT}, ALL - {"attention"}),  # heads of v are smaller than those of q
    "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}, {"norm", "attention"}),
    "bloom": ("Bloom", {"n_layer": 2, "n_head": 4, "hidden_dropout": 0.0}, {"norm"}),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, **SHARED}, ALL),
    # The decoder's masks have windows of which attention is not told.
    "qwen2_moe_windows": ("Qwen2Moe", {**EXPERTS, **SHARED, **WINDOWS}, ALL - {"attention"}),
    # Layers that norm q and k but do not rotate them.
    "exaone4_nope": ("Exaone4", {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}, ALL),
    "apertus": ("Apertus", {}, ALL - {"mlp"}),
    "lfm2": ("Lfm2", {"layer_types": ["full_attention", "conv"]}, ALL),
    "granitemoe": ("GraniteMoe", EXPERTS, ALL - {"mlp"}),
    "gpt_bigcode": ("GPTBigCode", {**GPT, "n_head": 4, "n_positions": 64}, ALL - {"rotary"}),
    "gptj": ("GPTJ", {**GPT, "n_head": 4, "n_positions": 64, "rotary_dim": 4}, {"norm", "mlp"}),
    "glm4_moe": ("Glm4Moe", {**EXPERTS, **LATENT}, ALL),  # attention with norms of q and k or without
}
HALF_ROTATED = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
ODD: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "llama_odd_heads": (
        "Llama",
        {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10,
         "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
        ALL,
    ),
    "gpt2_untied": (
        "GPT2",
        {**GPT, "n_head": 1, "n_positions": 64, "n_inner": 40, "scale_attn_by_inverse_layer_idx": True,
         "tie_word_embeddings": False, "activation_function": "gelu"},
        ALL - {"rotary"},
    ),
    "gpt_neox_serial": ("GPTNeoX", {**HALF_ROTATED, "use_parallel_residual": False, "attention_bias": False}, ALL),
    "glm_biased": ("Glm", {**HALF_ROTATED, "attention_bias": True, "head_dim": 12, "num_key_value_heads": 4}, ALL),
    "stablelm_parallel": (
        "StableLm", {**HALF_ROTATED, "use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True}, ALL,
    ),
    "gemma2_uncapped": (
        "Gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": 5, "head_dim": 6,
         "sliding_window": 2, "attention_bias": True, "attn_implementation": "eager"},
        ALL,
    ),
}  # fmt: skip
"""Sizes and switches that no published model has."""

# Norms after the branches have no addition before them.
NOT_FUSED: dict[str, set[str]] = {name: {"residual", "qk norm"} for name in ("olmo2", "olmo3")}


def model_of(name: str) -> Any:
    """Return a float32 model, the same at every call, with parameters that make each part matter."""
    prefix, options, _ = {**FOUND, **UNKNOWN, **ODD}[name]
    if not hasattr(transformers, f"{prefix}Config"):
        pytest.skip(f"this release of transformers has no {prefix}")
    if name == "stablelm_parallel" and not CURRENT:
        pytest.skip(
            "this release of transformers expects a bias of every layer norm, also of StableLM's, which have none"
        )
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if name in ("phi", "phi3") else {}
    rest = {"residual_dropout": 0.0, "embedding_dropout": 0.0} if name == "starcoder2" else {}
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **options, **dropout, **rest})
    head = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
    model = getattr(transformers, f"{prefix.removesuffix('Text')}{head}")(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.8 + 0.2 * noise)
    return model


@pytest.mark.parametrize("name", [*FOUND, *UNKNOWN, *ODD])
def test_loss_and_gradients_stay_the_same(name: str) -> None:
    parts = {**FOUND, **UNKNOWN, **ODD}[name][2]
    inputs = batch(padded=True)
    wanted = found(model_of(name), **inputs)
    model = patch(model_of(name))
    ours = found(model, **inputs)
    done = report(model)
    if CURRENT:
        assert set(done.swapped) == parts
        assert name not in FOUND or not done.unrecognised
    assert not CURRENT or name not in FOUND or set(done.not_fused) <= NOT_FUSED.get(name, set())
    assert set(done.swapped) | set(done.left) >= ALL - {"mlp"}
    # Experts that no token reached; biases of keys, whose gradient is zero but for rounding.
    gone = {key for key, one in wanted.items() if float(one.norm()) < 1e-7}
    ours, wanted = ({key: one for key, one in both.items() if key not in gone} for both in (ours, wanted))
    assert_same(ours, wanted, 3e-5)


@pytest.mark.parametrize("name", ODD)
@torch.no_grad()
def test_odd_configurations_generate_the_same_tokens(name: str) -> None:
    model, prompt = model_of(name).eval(), batch(length=7)["input_ids"]
    wanted = model.generate(prompt, max_new_tokens=5, do_sample=False)
    assert torch.equal(patch(model).generate(prompt, max_new_tokens=5, do_sample=False), wanted)


@pytest.mark.parametrize("name", ["llama4_text", "gpt2", "gpt_neox", "starcoder2", "nemotron"])
def test_layers_on_kernels_keep_loss_and_gradients(name: str) -> None:
    """Each norm's backward adds the gradient that bypasses the norm."""
    model, inputs = model_of(name), batch(length=5)
    wanted = found(model, **inputs)
    with ts.use("interpret"):
        ours = found(patch(model), **inputs)
    if CURRENT:
        assert report(model).fused["residual"] == 2
    gone = {key for key, one in wanted.items() if float(one.norm()) < 1e-7}
    ours, wanted = ({key: one for key, one in both.items() if key not in gone} for both in (ours, wanted))
    assert_same(ours, wanted, 3e-5)


@pytest.mark.parametrize("name", ["llama4_text", "smollm3", "gpt2", "gpt_neox", "gpt_oss", "cohere2", "exaone4_nope"])
def test_packed_sequences_stay_the_same(name: str) -> None:
    inputs: dict[str, Any] = {**batch(), "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])}
    for options in ({"use_cache": False}, {}):  # transformers looks for packed sequences only without a cache
        model = model_of(name).eval()
        with torch.no_grad():
            wanted = model(**inputs, **options).logits
            ours = patch(model)(**inputs, **options).logits
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", [True, False])
@torch.no_grad()
def test_given_starts_of_chunked_sequences_are_packed_sequences(positions: bool) -> None:
    """Chunks have 8 tokens. The starts mean the same as the positions."""
    inputs: dict[str, Any] = batch()
    counted = torch.cat([torch.arange(length) for length in (5, 7, 2, 10, 12)]).view(3, 12)
    model = model_of("llama4_text").eval()
    wanted = model(**inputs, position_ids=counted, use_cache=False).logits
    starts = torch.tensor([0, 5, 12, 14, 24, 36], dtype=torch.int32)
    given = {"position_ids": counted} if positions else {}
    ours = patch(model)(**inputs, **given, cu_seq_lens_q=starts, cu_seq_lens_k=starts, use_cache=False).logits
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cohere", "glm4", "gpt_oss", "helium"])
@torch.no_grad()
def test_generated_tokens_stay_the_same(name: str) -> None:
    tokens = batch(length=7)["input_ids"]
    theirs = model_of(name).eval().generate(tokens, max_new_tokens=6, do_sample=False)
    assert torch.equal(patch(model_of(name).eval()).generate(tokens, max_new_tokens=6, do_sample=False), theirs)


def test_table_of_the_documentation_is_the_data() -> None:
    page = Path(__file__).parents[2] / "docs" / "patch.md"
    assert families_table() in page.read_text(encoding="utf-8")


def test_every_family_has_a_test() -> None:
    elsewhere = {"modernbert", "bert", "qwen2_vl"}  # test_patch_encoders.py
    assert set(FAMILIES) == {*FOUND, *CLASSES} - {"gemma3"} | {"gemma3_text"} | elsewhere


def test_router_losses_run_the_models_own_forward() -> None:
    inputs = batch()
    wanted = found(model_of("mixtral"), **inputs, output_router_logits=True)
    ours = found(patch(model_of("mixtral")), **inputs, output_router_logits=True)
    torch.testing.assert_close(ours["loss"], wanted["loss"])
