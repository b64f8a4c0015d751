"""Kernels for Hopper, in Gluon or with TMA, run in the interpreter: small problems, planned for an absent H100."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from on_hopper import interpreted, names
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import tilesmith as ts
from tilesmith.ops.attention.hopper.backward_plan import HopperBackward
from tilesmith.ops.attention.hopper.forward_plan import HopperForward
from tilesmith.ops.matmul.planning.half_on_hopper import Half
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan


def planned(function: Callable[..., object], *tensors: Tensor) -> list[Plan]:
    """Return the plans of a call for Hopper."""
    with ts.use("triton"), recorded_plans("cuda:90") as plans:
        function(*(tensor.detach().to("meta").requires_grad_() for tensor in tensors))
    return plans


def test_exact_matmul_by_partitions_matches_torch() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(128, 64), torch.randn(64, 64)
    (plan,) = planned(ts.ops.matmul, a, b)
    assert "matmul_hopper_exact_kernel" in names(plan)
    torch.testing.assert_close(interpreted(plan, [a, b])[0], a @ b, atol=2e-5, rtol=1e-5)


@pytest.fixture
def hopper_forms_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in (HopperForward, HopperBackward):
        monkeypatch.setattr(form, "suits", lambda form, problem: True)


def assert_attention_matches_torch(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, *, is_causal: bool) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> None:
        output = ts.ops.attention(q, k, v, causal=is_causal)
        output.backward(torch.empty_like(output))  # type: ignore[no-untyped-call]  # PyTorch ships it untyped

    forward, backward = planned(call, q, k, v)
    assert names(forward) == ["attention_hopper_forward_kernel"]
    assert "attention_hopper_backward_kernel" in names(backward)
    output, logsumexp = interpreted(forward, [q, k, v])
    leaves = [one.float().requires_grad_() for one in (q, k, v)]
    expected = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=is_causal, enable_gqa=True)
    expected.backward(gradient.float())  # type: ignore[no-untyped-call]  # PyTorch ships it untyped
    torch.testing.assert_close(output.float(), expected.detach(), atol=2e-2, rtol=2e-2)
    gradients = interpreted(backward, [gradient, output, logsumexp, q, k, v])[:3]
    for ours, leaf in zip(gradients, leaves, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(ours.float(), leaf.grad, atol=4e-2, rtol=4e-2)


@pytest.mark.parametrize(
    ("is_causal", "length", "head", "heads"),
    [
        (True, 384, 64, 1),
        (False, 257, 128, 1),
        (True, 299, 96, 1),
        (False, 257, 96, 2),
        (True, 257, 80, 2),
        (False, 299, 80, 1),
        (True, 44, 72, 3),
    ],
)
def test_attention_and_its_gradients_match_torch(
    is_causal: bool, length: int, head: int, heads: int, hopper_forms_at_any_size: None
) -> None:
    """Three programs add to dq: the first stores its part, the second adds to it, the third stores the result. Of 44
    tokens one program is the first and the last."""
    q, gradient = (torch.randn(1, heads, length, head).bfloat16() for _ in range(2))
    k, v = (torch.randn(1, 1, length, head).bfloat16() for _ in range(2))
    with ts.ops.configured(least_programs=1):  # programs loop over all heads that share keys
        assert_attention_matches_torch(q, k, v, gradient, is_causal=is_causal)


def test_keys_past_the_end_add_nothing_to_the_gradients(hopper_forms_at_any_size: None) -> None:
    """All scores are near −512. A key of zeros past the end has the score 0: beside them, its weight overflows."""
    q, k, v, gradient = (torch.randn(1, 1, 129, 64).bfloat16() for _ in range(4))
    q, k = (0.1 * q + 8).bfloat16(), (0.1 * k - 8).bfloat16()
    assert_attention_matches_torch(q, k, v, gradient, is_causal=False)


@pytest.mark.parametrize(
    ("is_causal", "queries", "keys", "head", "groups"),
    [
        (True, 200, 200, 64, 1),
        (False, 70, 90, 80, 1),
        (True, 130, 300, 64, 3),
        (True, 300, 130, 128, 2),
        (True, 130, 150, 160, 2),
        (False, 70, 90, 32, 1),
        (True, 70, 70, 256, 2),
    ],
)
def test_attention_forward_matches_torch(is_causal: bool, queries: int, keys: int, head: int, groups: int) -> None:
    """Of short sequences, by one warpgroup a program and by several."""
    q = torch.randn(1, 2, queries, head).bfloat16()
    k, v = (torch.randn(1, 2, keys, head).bfloat16() for _ in range(2))
    with ts.ops.configured(GROUPS=groups, resident=1):
        (plan,) = planned(lambda q, k, v: ts.ops.attention(q, k, v, causal=is_causal), q, k, v)
    assert names(plan) == ["attention_hopper_forward_kernel"]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    seen = seen.tril(keys - queries) if is_causal else seen
    expected = scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=seen).nan_to_num()
    torch.testing.assert_close(interpreted(plan, [q, k, v])[0].float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    "sizes",
    [
        (2, 4, 2, 1, 300, 64),
        (1, 2, 1, 3, 700, 56),
        (1, 8, 1, 9, 290, 80),
        (1, 3, 3, 1, 20, 128),
        (1, 2, 2, 1, 333, 160), (1, 1, 1, 1, 5000, 64),
    ],
    ids=["one-query", "several-queries", "many-rows", "few-keys", "wide-heads", "many-splits"],
)  # fmt: skip
def test_decoding_by_tma_matches_torch(sizes: tuple[int, ...]) -> None:
    """Sizes are batch, heads, key heads, queries, keys and the size of a head."""
    batch, heads, key_heads, queries, keys, head = sizes
    q = torch.randn(batch, heads, queries, head).bfloat16()
    k, v = (torch.randn(batch, key_heads, keys, head).bfloat16() for _ in range(2))
    (plan,) = planned(lambda q, k, v: ts.ops.attention(q, k, v, causal=True), q, k, v)
    assert names(plan)[0] == "attention_decode_kernel"
    assert plan.launches[0].arguments["WALK"] == "described"
    assert len(plan.launches) == (2 if keys > 256 else 1)
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    expected = scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=seen, enable_gqa=True)
    torch.testing.assert_close(interpreted(plan, [q, k, v])[0].float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("sizes", [(128, 512, 128), (3, 136, 200, 24)], ids=["matrix", "batch"])
def test_half_matmul_by_partitions_matches_torch(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Half, "suits", lambda form, problem: True)
    torch.manual_seed(0)
    *matrices, rows, depth, columns = sizes
    a, b = torch.randn(*matrices, rows, depth).bfloat16(), torch.randn(*matrices, depth, columns).bfloat16()
    (plan,) = planned(ts.ops.matmul, a, b)
    assert "matmul_hopper_kernel" in names(plan)
    torch.testing.assert_close(interpreted(plan, [a, b])[0].float(), a.float() @ b.float(), atol=0.2, rtol=1e-2)
