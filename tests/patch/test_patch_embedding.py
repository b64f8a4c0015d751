# mypy: disable-error-code="no-untyped-call"
# PyTorch types Tensor.backward not at all.
"""Embeddings that share their weight with the head: one gradient, with the tokens' rows added to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import assert_same, batch, found, model_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
from tilesmith.ops.runtime.plan import Plan
from tilesmith.patch import patch
from tilesmith.patch.gradients.embedding_rows import add_rows_, plan_rows_added, rows_added
from tilesmith.patch.gradients.tied_embedding import embedded_inputs
from tilesmith.toolchain.compiler import Target, compile_kernel


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def small(family: str = "llama", **options: Any) -> Any:
    return model_of(family, num_hidden_layers=1, tie_word_embeddings=True, **options)


def few() -> dict[str, Tensor]:
    inputs = {name: tensor[:2, :6] for name, tensor in batch().items()}
    inputs["input_ids"][:, 2:4] = 0  # the padding token of these models
    return inputs


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.called.add(function.name())
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("padding", [0, None], ids=["padding", "no padding"])
def test_tied_model_has_the_same_gradients(padding: int | None) -> None:
    ours = found(patch(small(pad_token_id=padding)), **few())
    with ts.use("torch"):
        assert_same(ours, found(small(pad_token_id=padding), **few()))


def test_scaled_tied_embedding_has_the_same_gradients() -> None:
    """Gemma multiplies the vectors by a number."""
    ours = found(patch(small("gemma2")), **few())
    assert is_joined(small("gemma2"))
    with ts.use("torch"):
        assert_same(ours, found(small("gemma2"), **few()))


@pytest.mark.gpu
def test_tied_model_has_the_same_gradients_on_a_gpu() -> None:
    inputs = {name: tensor.cuda() for name, tensor in few().items()}
    with ts.use("torch"):
        wanted = found(small().cuda(), **inputs)
    with ts.use("triton"):
        assert_same(found(patch(small().cuda()), **inputs), wanted, tolerance=1e-4)


def test_gradients_accumulate_over_steps() -> None:
    ours, theirs = patch(small()).train(), small().train()
    for _ in range(2):
        ours(**few()).loss.backward()
        with ts.use("torch"):
            theirs(**few()).loss.backward()
    assert_same(
        {name: one.grad for name, one in ours.named_parameters()},
        {name: one.grad for name, one in theirs.named_parameters()},
    )


def test_backward_twice_gives_the_same_gradients() -> None:
    model = patch(small()).train()
    loss = model(**few()).loss
    weights = list(model.parameters())
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    again = torch.autograd.grad(loss, weights)
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_backward_adds_rows_without_a_dense_embedding_gradient() -> None:
    inputs = few()
    model = patch(small()).train()
    loss = model(**inputs).loss
    with Watching() as watching:
        loss.backward()
    assert "tilesmith::embedding_add_rows" in watching.called


def is_joined(model: Any) -> bool:
    inputs, _ = embedded_inputs(model, {"input_ids": few()["input_ids"]})
    return inputs["input_ids"] is None


def test_only_plain_tied_embeddings_are_joined() -> None:
    assert is_joined(small())
    assert not is_joined(model_of("llama", tie_word_embeddings=False))
    frozen, hooked, watched, own, other = (small() for _ in range(5))
    frozen.lm_head.weight.requires_grad_(False)
    hooked.model.embed_tokens.register_forward_hook(lambda module, inputs, output: 2 * output)
    watched.model.register_forward_pre_hook(lambda module, inputs: None)
    own.model.embed_tokens.forward = own.model.embed_tokens.forward
    other.model.embed_tokens.__class__ = type("Other", (nn.Embedding,), {})
    assert not any(is_joined(model) for model in (frozen, hooked, watched, own, other))
    with torch.no_grad():
        assert not is_joined(small())
    with ts.use("torch"):
        assert not is_joined(small())


def test_embedding_with_hook_is_called() -> None:
    def hooked() -> Any:
        model = small()
        model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: 2 * output)
        return model

    ours = found(patch(hooked()), **few())
    with ts.use("torch"):
        assert_same(ours, found(hooked(), **few()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rows_of_one_token_are_summed_and_rounded_once(dtype: torch.dtype) -> None:
    tokens = torch.tensor([3, 5, 3, 0, 8, 3, 0, 5])
    total, rows = torch.randn(9, 1030, dtype=dtype), torch.randn(1030, 8, dtype=dtype).t()
    exact = total.double()
    for token, row in zip(tokens.tolist(), rows.double(), strict=True):
        exact[token] += row if token != 5 else 0
    arguments = rows, *tokens.sort(stable=True), 5
    composed = rows_added(total, *arguments)
    same = add_rows_(total, *arguments)
    assert same is total
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-8}[dtype]
    torch.testing.assert_close(total.double(), exact, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(composed.double(), exact, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("target", ["cuda:90", "cuda:80", "hip:gfx942"])
def test_row_kernel_compiles_without_spills(target: str) -> None:
    total, rows = (torch.empty(length, 2048, dtype=torch.bfloat16, device="meta") for length in (128256, 8192))
    tokens = torch.empty(8192, dtype=torch.int64, device="meta")
    plan = Plan("embedding_rows_added", total.device, (total, rows, tokens, tokens, -1))
    operands: list[Any] = plan.operands
    plan_rows_added(plan, *operands)
    (launch,) = plan.launches
    binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0


def test_gradients_can_be_differentiated_again() -> None:
    model = small()
    tokens = few()["input_ids"]

    def twice(vectors: Tensor, weight: Tensor) -> Tensor:
        loss = vectors.sin().sum() * weight.cos().sum()
        (first,) = torch.autograd.grad(loss, model.lm_head.weight, create_graph=True)
        second: Tensor = torch.autograd.grad(first.square().sum(), model.lm_head.weight)[0]
        return second

    inputs, weight = embedded_inputs(model, {"input_ids": tokens})
    embedding: nn.Embedding = model.model.embed_tokens
    plain = F.embedding(tokens, embedding.weight, embedding.padding_idx)
    torch.testing.assert_close(twice(inputs["inputs_embeds"], weight), twice(plain, embedding.weight))
