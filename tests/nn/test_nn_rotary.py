"""RotaryEmbedding: angles, positions, kept tables and state dict."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.nn.attention import RotaryEmbedding


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def hugging_faces(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary embedding as in Hugging Face's LLaMA, on [batch, heads, length, head_dim]."""
    inverse = 1.0 / base ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    angles = positions[..., None].double() * inverse
    both = torch.cat((angles, angles), -1)
    first, second = x.chunk(2, -1)
    return (x * both.cos() + torch.cat((-second, first), -1) * both.sin()).to(x.dtype)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_rotation_matches_hugging_faces_llama(base: float) -> None:
    q, k = torch.randn(2, 4, 11, 16), torch.randn(2, 2, 11, 16)
    turned = RotaryEmbedding(16, base)(q, k)
    wanted = tuple(hugging_faces(x, torch.arange(11), base) for x in (q, k))
    torch.testing.assert_close(turned, wanted)


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_depend_on_the_distance_only(interleaved: bool) -> None:
    module = RotaryEmbedding(16, interleaved=interleaved)
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(q_position: int, k_position: int) -> Tensor:
        turned_q, _ = module(q, q, torch.tensor([q_position]))
        turned_k, _ = module(k, k, torch.tensor([k_position]))
        return torch.sum(turned_q * turned_k)

    torch.testing.assert_close(score(5, 2), score(1003, 1000))
    assert not torch.isclose(score(5, 2), score(6, 2))


def test_positions_may_be_given_for_all_or_for_each_sequence() -> None:
    module, q, k = RotaryEmbedding(8), torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8)
    plain = module(q, k)
    torch.testing.assert_close(module(q, k, torch.arange(5)), plain)
    torch.testing.assert_close(module(q, k, torch.arange(5).expand(2, 5)), plain)
    shifted = torch.stack((torch.arange(5), torch.arange(5) + 7))
    torch.testing.assert_close(module(q, k, shifted)[0][0], plain[0][0])
    torch.testing.assert_close(module(q, k, shifted)[0][1], hugging_faces(q[1], torch.arange(5) + 7, 10000.0))


def test_large_positions_are_exact() -> None:
    module, x = RotaryEmbedding(8), torch.randn(1, 1, 1, 8)
    far = torch.tensor([1_000_003])
    torch.testing.assert_close(module(x, x, far)[0], hugging_faces(x, far, 10000.0), rtol=1e-5, atol=1e-6)


def test_elements_beyond_rotary_dim_stay_unchanged() -> None:
    q = torch.randn(2, 3, 5, 12)
    torch.testing.assert_close(RotaryEmbedding(8)(q, q)[0][..., 8:], q[..., 8:], rtol=0, atol=0)


def test_tables_grow_with_the_length_and_are_reused() -> None:
    module = RotaryEmbedding(8)
    for length in (3, 5, 6, 40, 7):
        q = torch.randn(1, 2, length, 8)
        torch.testing.assert_close(module(q, q)[0], hugging_faces(q, torch.arange(length), 10000.0))
    kept = module.cos
    module(q, q)
    assert module.cos is kept


def test_state_dict_has_no_tables() -> None:
    module, q = RotaryEmbedding(8), torch.randn(1, 2, 5, 8)
    module(q, q)
    assert not module.state_dict()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(q, q), module(q, q), rtol=0, atol=0)


def test_tables_stay_in_float32() -> None:
    module = RotaryEmbedding(8).to(torch.bfloat16)
    q = torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
    assert module(q, q)[0].dtype == torch.bfloat16
    assert module.cos.dtype == torch.float32


def test_tables_from_inference_mode_work_in_training() -> None:
    module, q = RotaryEmbedding(8), torch.randn(1, 2, 5, 8, requires_grad=True)
    with torch.inference_mode():
        module(q, q)
    torch.autograd.backward(module(q, q), [torch.ones_like(q)] * 2)
    assert q.grad is not None


def test_compiles_to_one_graph() -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    torch._dynamo.reset()
    compiled = torch.compile(RotaryEmbedding(8), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k), RotaryEmbedding(8)(q, k))
    torch.testing.assert_close(compiled(q, k, torch.arange(6)), RotaryEmbedding(8)(q, k))


@pytest.mark.parametrize("rotary_dim", [0, 7, -2])
def test_rejects_odd_or_small_rotary_dim(rotary_dim: int) -> None:
    with pytest.raises(
        ValueError, match=f"^RotaryEmbedding: rotary_dim is {rotary_dim}, but must be even and at least 2"
    ):
        RotaryEmbedding(rotary_dim)


@pytest.mark.parametrize("shape", [(4,), (2, 4), (1, 2, 5), ()], ids=str)
def test_rejects_positions_of_another_shape(shape: tuple[int, ...]) -> None:
    q = torch.randn(2, 3, 5, 8)
    with pytest.raises(ValueError, match=r"^RotaryEmbedding: positions has shape .*, but must be \[length\] or"):
        RotaryEmbedding(8)(q, q, torch.zeros(shape, dtype=torch.long))
