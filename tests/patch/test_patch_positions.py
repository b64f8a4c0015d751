"""Default masks, positions and rotary tables: made once, and right after changes of the model."""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

import pytest
import torch
from small_models import CLASSES, assert_same, batch, found, model_of
from torch import nn

from tilesmith.patch import patch
from tilesmith.patch.parts.default_positions import LENGTHS, default_positions, full_mask, with_kept_tables

TOKENS = batch()["input_ids"]


class Counted(torch.overrides.TorchFunctionMode):
    """Counts the cosines that are computed."""

    def __init__(self) -> None:
        self.cosines = 0

    def __torch_function__(self, function, types, arguments=(), named=None):  # type: ignore[no-untyped-def]  # as PyTorch calls it
        self.cosines += function in (torch.cos, torch.Tensor.cos)
        return function(*arguments, **(named or {}))


def cosines(model: nn.Module, tokens: torch.Tensor) -> int:
    counted = Counted()
    with counted:
        model(input_ids=tokens, labels=tokens)
    return counted.cosines


def test_tables_are_computed_once_per_length() -> None:
    model = patch(model_of("llama"))
    assert cosines(model, TOKENS) == 1
    assert cosines(model, TOKENS) == 0
    assert cosines(model, TOKENS[:, :5]) == 1
    assert cosines(model, TOKENS) == 0


def test_number_of_kept_lengths_is_limited() -> None:
    model = patch(model_of("llama"))
    for length in range(2, LENGTHS + 3):
        assert cosines(model, TOKENS[:, :length]) == 1
    assert cosines(model, TOKENS[:, :2]) == 1


@pytest.mark.parametrize("family", CLASSES)
def test_second_step_is_right_too(family: str) -> None:
    wanted = found(model_of(family), **batch())
    model = patch(model_of(family))
    found(model, **batch())
    model.zero_grad()
    assert_same(found(model, **batch()), wanted)


def test_changed_frequencies_give_new_tables() -> None:
    plain = model_of("llama")
    model = patch(copy.deepcopy(plain))
    with torch.no_grad():
        before = model(input_ids=TOKENS).logits
        for one in (plain, model):
            one.model.rotary_emb.inv_freq.mul_(0.5)
        after = model(input_ids=TOKENS).logits
        torch.testing.assert_close(after, plain(input_ids=TOKENS).logits)
    assert not torch.equal(before, after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_tables_have_the_dtype_of_the_input(dtype: torch.dtype) -> None:
    rotary = patch(model_of("llama")).model.rotary_emb
    ids = default_positions(6, torch.device("cpu"))
    assert rotary(torch.ones(1, dtype=torch.bfloat16), ids)[0].dtype == torch.bfloat16
    assert {one.dtype for one in rotary(torch.ones(1, dtype=dtype), ids)} == {dtype}


def test_tables_of_layer_types_given_by_name_are_kept_apart() -> None:
    calls: list[str] = []

    class Rotary(nn.Module):
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str) -> Any:
            calls.append(layer_type)
            angles = position_ids / len(layer_type)
            return angles.cos(), angles.sin()

    rotary = Rotary()
    rotary.forward = MethodType(with_kept_tables(Rotary.forward), rotary)  # type: ignore[method-assign]
    x, ids = torch.ones(1), default_positions(6, torch.device("cpu"))
    assert ids is not None
    for kind in ("full", "sliding", "full", "sliding"):
        assert torch.equal(rotary(x, ids, layer_type=kind)[0], (ids / len(kind)).cos())
        assert torch.equal(rotary(x, ids + 1, layer_type=kind)[0], ((ids + 1) / len(kind)).cos())
    assert calls == ["full", "full", "sliding", "sliding", "full", "sliding"]


def test_given_positions_are_used() -> None:
    plain, model = model_of("llama"), patch(model_of("llama"))
    given = torch.arange(3, 3 + 2 * TOKENS.shape[1], 2)[None]
    with torch.no_grad():
        model(input_ids=TOKENS)
        torch.testing.assert_close(
            model(input_ids=TOKENS, position_ids=given, attention_mask=torch.ones_like(TOKENS)).logits,
            plain(input_ids=TOKENS, position_ids=given, attention_mask=torch.ones_like(TOKENS)).logits,
        )


def test_tables_from_inference_mode_work_in_training() -> None:
    model = patch(model_of("llama"))
    with torch.inference_mode():
        model(input_ids=TOKENS)
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()


def test_full_mask_stores_one_element() -> None:
    mask = full_mask((3, 1000), torch.device("cpu"))
    assert mask.shape == (3, 1000)
    assert mask.untyped_storage().nbytes() == 1
    assert mask.all()


def test_default_positions_are_the_same_tensor() -> None:
    device = torch.device("cpu")
    first = default_positions(7, device)
    assert first is not None
    assert first is default_positions(7, device)
    assert first.tolist() == [list(range(7))]


@pytest.mark.gpu
def test_tensors_of_a_captured_graph_are_not_kept() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert default_positions(7, device) is None
        first, second = (full_mask((1, 7), device) for _ in range(2))
        assert first.data_ptr() != second.data_ptr()
