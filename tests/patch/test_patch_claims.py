"""The claims of docs/patch.md, and the tests that can refute each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = " ".join((HERE.parents[1] / "docs" / "patch.md").read_text(encoding="utf-8").split())

# A sentence of the page, and its tests: the file without `test_patch_`, and the function without `test_`.
CLAIMS: dict[str, list[str]] = {
    "Parameters, state dict and the files of `save_pretrained` stay unchanged": [
        "behaviour:saved_model_is_the_same_as_unpatched",
    ],
    "another model in the same process, even with the same configuration object, stays unchanged": [
        "behaviour:other_model_of_the_same_configuration_stays_unpatched",
    ],
    "Each part has a switch": ["behaviour:each_switch_swaps_only_its_part"],
    "Inside a layer the same kernels add the residual before the norm": [
        "joined:one_addition_of_hidden_states_per_layer_is_a_separate_pass",
        "families:layers_on_kernels_keep_loss_and_gradients",
    ],
    "cosines and sines are computed once for each length": ["positions:tables_are_computed_once_per_length"],
    "Training does not keep act(gate) · up": ["joined:feed_forward_block_saves_gate_and_up_only"],
    "where head and embedding share their weight, one gradient for both": [
        "embedding:tied_model_has_the_same_gradients",
        "embedding:backward_adds_rows_without_a_dense_embedding_gradient",
    ],
    "causal attention with GQA, padding masks, sliding windows, capped scores, caches": [
        "parity:loss_and_gradients_of_every_family_are_the_same",
        "parity:windows_of_the_test_models_matter",
        "parity:generation_with_a_cache_gives_the_same_tokens",
    ],
    "Patching a patched model starts again, with the switches of the new call": [
        "behaviour:patching_again_starts_from_the_original",
    ],
    "| family | `model_type` | beside Llama |": [
        "families:loss_and_gradients_stay_the_same",
        "families:every_family_has_a_test",
        "families:table_of_the_documentation_is_the_data",
        "encoders:loss_and_gradients_of_an_encoder_stay_the_same",
        "encoders:language_part_of_qwen2_vl_stays_the_same",
    ],
    "are tried on random numbers, with their gradients, before anything is replaced": [
        "lookalikes:norms_are_recognised_by_what_they_compute",
        "lookalikes:activations_are_recognised_by_what_they_compute",
        "lookalikes:blocks_of_any_name_are_recognised_by_what_they_compute",
    ],
    "In models that are not transformers' own `patch` replaces norms and feed-forward blocks": [
        "hand_written:loss_and_gradients_of_a_hand_written_model_stay_the_same",
    ],
    "A model without any of these, and a wrapper around a model, raise a ValueError": [
        "behaviour:rejects_unsupported_models",
    ],
    "`patch` does not change a module whose `forward` is not that of its class, and reports it": [
        "behaviour:module_with_its_own_forward_stays_unchanged",
        "report:layer_with_its_own_forward_is_reported_as_not_fused",
    ],
    "A module with hooks is called as a module": [
        "joined:adapters_and_hooks_are_called",
        "embedding:embedding_with_hook_is_called",
        "behaviour:head_with_hook_computes_logits",
    ],
    "Hidden states between layers are plain tensors": ["joined:hidden_states_between_layers_are_plain"],
    "A training step never waits for the GPU": ["joined:training_step_does_not_wait_for_the_gpu"],
    "`report(model)` returns what `patch` did": ["report:limits_of_the_operators_are_reported_without_a_warning"],
    "Where a release of transformers is written differently, `patch` leaves that part or fusion out": [
        "report:module_written_differently_is_reported_by_name",
        "report:class_that_transformers_does_not_have_is_reported_by_name",
        "report:decoder_layer_written_differently_computes_the_same",
    ],
    "and `patch` logs the same sentence as a warning of the logger `tilesmith.patch`, once per process": [
        "report:warning_is_logged_once_per_process",
    ],
    "With `labels` in training, the output has `loss`, and its `logits` are None": [
        "behaviour:logits_exist_in_evaluation_and_on_request",
    ],
    "`ignore_index`, `shift_labels` and `num_items_in_batch`": [
        "behaviour:options_of_the_loss_mean_the_same",
        "parity:accumulated_gradients_are_those_of_one_batch",
    ],
    "where the model has its own loss function": ["behaviour:custom_loss_function_is_called"],
    "`use_cache=True` requests the cache": ["behaviour:training_keeps_no_cache_by_default"],
    "A padding mask stays [batch, keys]": [
        "behaviour:padding_masks_stay_two_dimensional",
        "joined:attention_gets_no_mask_without_padding",
    ],
    "run on `ts.ops.attention_varlen`, without a mask": ["packing:sequences_packed_by_positions_match_transformers"],
    "with `cu_seq_lens_q` (`return_flash_attn_kwargs=True`) nothing waits": [
        "packing:given_starts_of_sequences_are_used",
        "families:given_starts_of_chunked_sequences_are_packed_sequences",
    ],
    "Under torch.compile, `cu_seq_lens_q` leads to the same kernels": [
        "compile:given_starts_of_packed_sequences_run_on_varlen_attention",
        "compile:positions_that_restart_are_right_when_compiled",
    ],
    "positions mean packed sequences only where the decoder makes no cache": [
        "families:packed_sequences_stay_the_same",
    ],
    "**Your own masks**": ["parity:custom_full_mask_is_used"],
    "**static caches** run on our attention": ["packing:static_cache_runs_on_our_attention"],
    '`output_attentions=True` with "eager"': ["behaviour:eager_model_returns_attentions"],
    "A query without any key, as padding may have, gets zeros": ["behaviour:query_without_any_key_gets_zeros"],
    "The callback patches the model when the Trainer is made": ["trainers:callback_patches_a_trainers_model"],
    "Its arguments are the switches of `patch`": ["trainers:callback_takes_the_switches_of_patch"],
    "SFTTrainer, DPOTrainer and GRPOTrainer were tried": [
        "trainers:callback_works_in_trls_sft_trainer",
        "trainers:callback_works_in_trls_dpo_trainer",
        "trainers:callback_works_in_trls_grpo_trainer",
    ],
    "4-bit weights of bitsandbytes with LoRA (QLoRA)": ["trainers:quantised_weights_with_adapters_train_the_same"],
    "The model stays one graph, with the fusions of the eager model": [
        "compile:compiled_model_is_one_graph_with_every_fusion",
    ],
    "Another length compiles once more, with a dynamic length; further lengths do not": [
        "compile:other_lengths_compile_once_more",
    ],
    "Gradient checkpointing, autocast, `model.eval()`, `generate`, `copy.deepcopy`: no extra steps": [
        "behaviour:gradient_checkpointing_gives_the_same_gradients",
        "parity:autocast_trains_as_exactly_as_unpatched",
        "parity:logits_of_every_family_are_the_same",
        "parity:our_kernels_generate_the_same_tokens",
        "behaviour:copy_is_patched_independently",
    ],
    "PEFT: `patch(peft_model.get_base_model())`": ["trainers:adapters_of_peft_train_the_same"],
    "Accelerate, DDP, FSDP2, DeepSpeed ZeRO 1 and 2: patch before wrapping": [
        "trainers:accelerate_trains_the_same",
        "trainers:two_processes_train_the_same",
        "trainers:deepspeed_trains_the_same",
    ],
    "Pickling a whole model (`torch.save(model)`): `unpatch` first": [
        "behaviour:unpatched_model_can_be_pickled_as_a_whole",
        "behaviour:pickling_a_patched_model_says_to_unpatch_it",
    ],
    "Before 4.53 transformers has no registry for masks, so it keeps `attention`": [
        "behaviour:release_without_a_registry_of_masks_keeps_its_attention",
    ],
    "Results differ from the unpatched model by rounding only": [
        "parity:our_kernels_compute_the_same_as_the_model",
        "parity:bfloat16_is_as_exact_as_unpatched",
    ],
}


@pytest.mark.parametrize("claim", CLAIMS, ids=range(len(CLAIMS)))
def test_claim_is_on_the_page_and_has_tests(claim: str) -> None:
    assert claim in PAGE
    for one in CLAIMS[claim]:
        file, function = one.split(":")
        source = (HERE / f"test_patch_{file}.py").read_text(encoding="utf-8")
        assert re.search(rf"^def test_{function}\(", source, flags=re.MULTILINE), one


def test_every_point_of_the_list_of_combinations_has_a_claim() -> None:
    """The list "Together with" promises the most; advice and releases of transformers are no promises."""
    points = re.findall(
        r"(?:^| )- (.*?)(?= - |$)", PAGE.partition("## Together with")[2].partition("Results differ")[0]
    )
    others = ("At the end of a DDP run", "transformers 4.5")
    assert len(points) > 5
    for point in points:
        assert point.startswith(others) or any(claim in point for claim in CLAIMS), point
