"""A patched model computes the same as before: logits, loss, every gradient, generated tokens."""

from __future__ import annotations

import pytest
import torch
from small_models import CLASSES, assert_same, batch, config_of, counted_calls, found, model_of
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.patch import patch

LAYERS = 2


@pytest.fixture(params=CLASSES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_loss_and_gradients_of_every_family_are_the_same(family: str, padded: bool) -> None:
    inputs = batch(padded=padded)
    wanted = found(model_of(family), **inputs)
    model = patch(model_of(family))  # tries blocks on random numbers
    with counted_calls() as calls:
        ours = found(model, **inputs)
    assert_same(ours, wanted)
    assert calls["norm"] >= 2 * LAYERS + 1
    assert calls["rotary"] == calls["attention"] == LAYERS
    assert calls["mlp"] == LAYERS
    assert calls["loss"] == 1


@torch.no_grad()
def test_logits_of_every_family_are_the_same(family: str) -> None:
    inputs = batch(padded=True)
    plain, patched = model_of(family).eval(), patch(model_of(family).eval())
    theirs, ours = plain(**inputs), patched(**inputs)
    present = inputs["attention_mask"].bool()
    torch.testing.assert_close(ours.logits[present], theirs.logits[present], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-6, atol=0)


@torch.no_grad()
def test_generation_with_a_cache_gives_the_same_tokens(family: str) -> None:
    """Beyond the window of five, and from a prompt with padding."""
    inputs = batch(padded=True, length=7)
    inputs["attention_mask"][1] = 1
    del inputs["labels"]
    theirs = model_of(family).eval().generate(**inputs, max_new_tokens=8, do_sample=False)
    with counted_calls() as calls:
        ours = patch(model_of(family).eval()).generate(**inputs, max_new_tokens=8, do_sample=False)
    assert torch.equal(ours, theirs)
    assert calls["attention"] == 8 * LAYERS


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_our_kernels_compute_the_same_as_the_model(family: str) -> None:
    """In the interpreter, where our kernels run instead of PyTorch."""
    options = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
               "num_key_value_heads": 1, "layer_types": ["sliding_attention"]}  # fmt: skip
    inputs = {name: tensor[:2, :7] for name, tensor in batch(padded=True).items()}
    wanted = found(model_of(family, **options), **inputs)
    with ts.use("interpret"):
        ours = found(patch(model_of(family, **options)), **inputs)
    assert_same(ours, wanted)


@pytest.mark.gpu
def test_our_kernels_compute_the_same_on_a_gpu(family: str) -> None:
    inputs = {name: tensor.cuda() for name, tensor in batch(padded=True).items()}
    wanted = found(model_of(family).cuda(), **inputs)
    with ts.use("triton"):
        ours = found(patch(model_of(family).cuda()), **inputs)
    assert_same(ours, wanted, tolerance=1e-4)


@torch.no_grad()
def test_our_kernels_generate_the_same_tokens() -> None:
    """One query against a cache that the window limits, in the interpreter."""
    inputs = batch(length=6)["input_ids"][:1]
    theirs = model_of("mistral").eval().generate(inputs, max_new_tokens=3, do_sample=False)
    with ts.use("interpret"):
        ours = patch(model_of("mistral").eval()).generate(inputs, max_new_tokens=3, do_sample=False)
    assert torch.equal(ours, theirs)


def test_packed_sequences_do_not_see_each_other() -> None:
    """Positions that restart give a mask that only the fallback supports."""
    pytest.importorskip("transformers", minversion="4.54")  # older releases ignore positions
    one = {**{name: tensor[:1] for name, tensor in batch().items()}, "use_cache": False}
    inputs = {**one, "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])}
    wanted = found(model_of("llama"), **inputs)
    unpacked = found(model_of("llama"), **one)
    with counted_calls() as calls:
        ours = found(patch(model_of("llama")), **inputs)
    assert_same(ours, wanted)
    assert calls["attention"] == 0
    assert abs(unpacked["loss"] - wanted["loss"]) > 1e-3  # the mask matters


@torch.no_grad()
def test_custom_full_mask_is_used() -> None:
    tokens = batch()["input_ids"]
    mask = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(3)) < 0.5
    mask = (mask | torch.eye(12, dtype=torch.bool)).tril()
    theirs = model_of("llama").eval()(tokens, attention_mask=mask).logits
    ours = patch(model_of("llama").eval())(tokens, attention_mask=mask).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_accumulated_gradients_are_those_of_one_batch() -> None:
    """`num_items_in_batch` weights micro-batches by their number of labels."""
    inputs = batch()
    inputs["labels"][0, 6:] = -100
    items = int((inputs["labels"][:, 1:] != -100).sum())
    wanted = found(model_of("llama"), **inputs)
    model = patch(model_of("llama")).train()
    total = 0.0
    for row, count in enumerate((items, torch.tensor(items), items)):
        piece = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
        loss = model(**piece, num_items_in_batch=count).loss
        loss.backward()
        total += loss.item()
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert_same({"loss": torch.tensor(total), **ours}, wanted)


def test_bfloat16_is_as_exact_as_unpatched() -> None:
    """The error against float32 is at most about three times that of the unpatched model."""
    inputs = batch(padded=True)
    exact = found(model_of("llama"), **inputs)
    plain = found(model_of("llama").bfloat16(), **inputs)
    ours = found(patch(model_of("llama").bfloat16()), **inputs)
    assert_as_exact(ours, plain, exact)


def test_autocast_trains_as_exactly_as_unpatched() -> None:
    inputs = batch(padded=True)
    exact = found(model_of("qwen3"), **inputs)
    with torch.autocast("cpu", torch.bfloat16):
        plain = found(model_of("qwen3"), **inputs)
        ours = found(patch(model_of("qwen3")), **inputs)
    assert_as_exact(ours, plain, exact)


def assert_as_exact(ours: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    """Assert that each tensor's error is at most about three times that of the unpatched model."""
    for name, wanted in exact.items():
        theirs = (plain[name].float() - wanted).norm()
        assert (ours[name].float() - wanted).norm() <= 3 * theirs + 2**-7 * wanted.norm(), name


def test_gemma_needs_its_own_form_of_norm() -> None:
    """With Llama's form of the norm, the parity tests of Gemma would fail."""
    gemma = found(model_of("gemma"), **batch())
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("tilesmith.patch.parts.norms.rms_norm", lambda x, weight, eps: rms_norm(x, weight - 1, eps))
        wrong = found(patch(model_of("gemma")), **batch())
    assert abs(wrong["loss"] - gemma["loss"]) > 1e-2


def test_windows_of_the_test_models_matter() -> None:
    """Else the parity of models with a sliding window would prove nothing."""
    for family in CLASSES:
        if hasattr(config_of(family), "sliding_window") and family != "gemma":
            narrow, wide = (found(model_of(family, sliding_window=width), **batch())["loss"] for width in (5, 50))
            assert abs(narrow - wide) > 1e-4, family
