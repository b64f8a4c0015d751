"""The masks that callers have: every shape that broadcasts, boolean and added, against PyTorch's own attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.runtime.dispatch import Mode
from tilesmith.ops.runtime.kernels import recorded_plans

BATCH, HEADS, QUERIES, KEYS, HEAD = 2, 4, 20, 33, 16
SHAPES = {
    "keys of each sequence": (BATCH, KEYS),
    "keys": (KEYS,),
    "keys, four dimensions": (BATCH, 1, 1, KEYS),
    "keys, one for all": (1, 1, 1, KEYS),
    "queries and keys": (QUERIES, KEYS),
    "queries": (QUERIES, 1),
    "each sequence": (BATCH, 1, QUERIES, KEYS),
    "each head": (HEADS, QUERIES, KEYS),
    "keys of each head": (BATCH, HEADS, 1, KEYS),
    "everything": (BATCH, HEADS, QUERIES, KEYS),
}


def tensors(dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (BATCH, HEADS, QUERIES, HEAD), (BATCH, HEADS // 2, KEYS, HEAD), (BATCH, HEADS // 2, KEYS, HEAD)
    return [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]


def boolean(shape: tuple[int, ...]) -> Tensor:
    """A random mask that lets every query see a key: PyTorch's answer for the others differs between releases."""
    mask = torch.rand(shape) > 0.3
    mask[..., :3] = True
    return mask


def broadcast(mask: Tensor) -> Tensor:
    """The mask as PyTorch's attention takes it."""
    mask = mask[:, None, None, :] if mask.shape == (BATCH, KEYS) else mask
    return mask.expand(BATCH, HEADS, QUERIES, KEYS)


def results(function: Any, *leaves: Tensor) -> list[Tensor]:
    leaves = tuple(one.detach().clone().requires_grad_() for one in leaves)
    output = function(*leaves)
    cotangent = torch.arange(output.numel()).mul(1.7).sin().view(output.shape).to(output)
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent)]


@pytest.mark.parametrize("route", ["torch", "interpret"])
class TestEveryShape:
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_boolean_mask_as_pytorch(self, shape: tuple[int, ...], route: Mode) -> None:
        mask = boolean(shape)
        with ts.use(route):
            ours = results(lambda q, k, v: ts.ops.attention(q, k, v, mask=mask), *tensors())
        right = results(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=broadcast(mask), enable_gqa=True),
            *tensors(),
        )
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        "shape",
        [
            (1, 1, 1, KEYS),
            (QUERIES, 1),
            (HEADS, QUERIES, KEYS),
            (BATCH, 1, QUERIES, KEYS),
            *(
                pytest.param(shape, marks=pytest.mark.slow)
                for shape in [(BATCH, 1, 1, KEYS), (QUERIES, KEYS), (BATCH, HEADS, 1, KEYS), SHAPES["everything"]]
            ),
        ],
    )
    def test_added_mask_as_pytorch_with_its_gradient(self, shape: tuple[int, ...], route: Mode) -> None:
        added = torch.randn(shape)
        with ts.use(route):
            ours = results(lambda q, k, v, mask: ts.ops.attention(q, k, v, mask=mask), *tensors(), added)
        right = results(
            lambda q, k, v, mask: F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask.expand(BATCH, HEADS, QUERIES, KEYS), enable_gqa=True
            ),
            *tensors(),
            added,
        )
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("route", ["torch", "interpret"])
@pytest.mark.parametrize("shape", [(QUERIES, KEYS), (BATCH, 1, 1, KEYS), (BATCH, 1, QUERIES, KEYS)])
def test_mask_joins_bias_and_causal(shape: tuple[int, ...], route: Mode) -> None:
    mask, bias = boolean(shape), torch.randn(HEADS, QUERIES, KEYS)
    seen = torch.ones(QUERIES, KEYS).tril(KEYS - QUERIES).bool()

    def pytorch(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        allowed = bias.masked_fill(~(seen & mask.expand(BATCH, HEADS, QUERIES, KEYS)), -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)

    with ts.use(route):
        ours = results(
            lambda q, k, v, bias: ts.ops.attention(q, k, v, causal=True, bias=bias, mask=mask), *tensors(), bias
        )
    torch.testing.assert_close(ours, results(pytorch, *tensors(), bias), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("route", ["torch", "interpret"])
def test_query_that_its_mask_hides_from_all_keys_gets_zeros(route: Mode) -> None:
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[5] = False
    with ts.use(route):
        output, dq, dk, dv = results(lambda q, k, v: ts.ops.attention(q, k, v, mask=mask), *tensors())
    assert output[:, :, 5].abs().max() == dq[:, :, 5].abs().max() == 0
    assert all(one.isfinite().all() for one in (output, dq, dk, dv))


def test_two_dimensions_are_sequences_and_keys_where_that_is_their_shape() -> None:
    q, k, v = (torch.randn(3, 1, 3, 16) for _ in range(3))
    mask = torch.eye(3) > 0
    by_sequence = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
    torch.testing.assert_close(ts.ops.attention(q, k, v, mask=mask), by_sequence)
    by_query = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(ts.ops.attention(q, k, v, mask=mask[None, None]), by_query)


@pytest.mark.parametrize("shape", [(BATCH, 1, 1, KEYS), (1, 1, 1, KEYS), (KEYS,)])
def test_mask_of_keys_reaches_the_kernel_as_bytes(shape: tuple[int, ...]) -> None:
    q, k, v = tensors(device="meta", dtype=torch.bfloat16)
    mask = torch.ones(shape, dtype=torch.bool, device="meta")
    with ts.use("triton"), recorded_plans("cuda:90") as plans:
        ts.ops.attention(q, k, v, mask=mask)
    given: list[Any] = [launch.arguments["mask_ptr"] for plan in plans for launch in plan.launches]
    assert [one.dtype for one in given] == [torch.bool]


def test_compiles_in_one_graph() -> None:
    mask = boolean((BATCH, 1, QUERIES, KEYS))
    compiled = torch.compile(lambda q, k, v: ts.ops.attention(q, k, v, mask=mask), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors()), ts.ops.attention(*tensors(), mask=mask))
