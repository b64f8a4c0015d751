"""Tiny LLaMA: what the model computes, and that its versions compute the same."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.models import llama
from tilesmith.models.llama import Config, Llama, parts
from tilesmith.models.llama.model import rotary_tables
from tilesmith.training.data.tasks import LlamaTask
from tilesmith.training.results.parity import parities
from tilesmith.training.running.distributed import Place

TINY = Config(vocab_size=50, hidden_dim=32, num_layers=2, num_heads=4, seq_len=12)
CPU = Place(torch.device("cpu"))
INTERPRETED = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "seq_len": 5}


def tokens(batch: int = 2, length: int = 12) -> Tensor:
    return torch.randint(TINY.vocab_size, (batch, length), generator=torch.Generator().manual_seed(1))


def test_default_sizes_are_those_of_the_workshop() -> None:
    assert asdict(Config()) == {
        "vocab_size": 1000, "hidden_dim": 512, "num_layers": 8, "num_heads": 8, "num_kv_heads": 4, "ffn_dim": 2048,
        "seq_len": 128, "rope_base": 10000.0, "norm_eps": 1e-6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"num_heads": 7}, "hidden_dim is 512, which num_heads 7 does not divide"),
        ({"num_heads": 0}, "num_heads is 0, but must be at least 1"),
        ({"hidden_dim": 24, "num_heads": 8}, "3 columns per head, but must be even"),
        ({"num_kv_heads": 3}, "num_kv_heads is 3, which does not divide num_heads 8"),
        ({"num_layers": -1}, "num_layers is -1"),
    ],
)
def test_rejects_inconsistent_sizes(sizes: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Config(**sizes)


@pytest.mark.parametrize(("num_heads", "expected"), [(1, 1), (2, 1), (5, 1), (8, 4), (9, 3)])
def test_key_heads_default_to_the_largest_divisor_up_to_half(num_heads: int, expected: int) -> None:
    assert Config(hidden_dim=2 * num_heads, num_heads=num_heads).num_kv_heads == expected


def test_matrices_start_small_and_norms_at_one() -> None:
    for name, parameter in Llama(Config(num_layers=1)).named_parameters():
        if "norm" in name:
            assert bool((parameter == 1).all())
        else:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.02), name
            assert abs(float(parameter.detach().mean())) < 1e-3, name


def test_first_loss_is_the_loss_of_guessing() -> None:
    loss = Llama(TINY)(tokens(), tokens().roll(1))
    assert loss.item() == pytest.approx(torch.tensor(50.0).log().item(), abs=0.05)


def test_predictions_do_not_depend_on_later_tokens() -> None:
    model, before = Llama(TINY), tokens()
    after = before.clone()
    after[:, 7:] = (after[:, 7:] + 1) % TINY.vocab_size
    with torch.no_grad():
        assert torch.equal(model(before)[:, :7], model(after)[:, :7])
        assert not torch.equal(model(before)[:, 7:], model(after)[:, 7:])


def test_rotation_keeps_norms_and_depends_on_distance_only() -> None:
    cos, sin = rotary_tables(TINY)
    q, k = torch.randn(2, TINY.head_dim)
    everywhere_q, everywhere_k = (vector.expand(1, 1, TINY.seq_len, -1) for vector in (q, k))
    turned_q, turned_k = parts.plain_rotary(everywhere_q, everywhere_k, cos, sin)
    assert torch.allclose(turned_q.norm(dim=-1), q.norm())
    products = (turned_q[0, 0] @ turned_k[0, 0].T).double()
    for distance in (0, 3, -5):
        along = products.diagonal(distance)
        assert torch.allclose(along, along[0].expand_as(along), atol=1e-4)
    assert not torch.allclose(products.diagonal(0)[0], products.diagonal(3)[0], atol=1e-2)


def test_each_key_head_serves_a_group_of_neighbouring_query_heads() -> None:
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    together = parts.plain_attention(q, k, v)
    for head in range(4):
        alone = parts.plain_attention(q[:, head : head + 1], k[:, head // 2 :][:, :1], v[:, head // 2 :][:, :1])
        assert torch.allclose(together[:, head], alone[:, 0], atol=1e-6)


def test_embedding_is_tied_to_the_output() -> None:
    model = Llama(TINY)
    model(tokens(), torch.zeros_like(tokens())).backward()
    assert model.embedding.grad is not None
    never_seen = next(token for token in range(1, 50) if token not in tokens())
    assert float(model.embedding.grad[never_seen].norm()) > 0, "as a row of the output it has a gradient"


def test_all_versions_share_one_state_dict() -> None:
    models = {name: Llama(TINY, llama.version(name).parts) for name in llama.VERSION_NAMES}
    first = models["v1"].state_dict()
    for model in models.values():
        model.load_state_dict(first)
        assert {name: value.shape for name, value in model.state_dict().items()} == {
            name: value.shape for name, value in first.items()
        }


def test_rejects_unknown_version() -> None:
    with pytest.raises(ValueError, match="version is 'v5', but must be one of v1, v2, v3, v4"):
        llama.version("v5")


def test_every_version_gives_the_same_logits_and_gradients() -> None:
    task = LlamaTask({"hidden_dim": 32, "num_layers": 2, "num_heads": 4, "seq_len": 12})
    for parity in parities(task, list(llama.VERSION_NAMES), torch.float32, CPU, 2):
        assert parity.passed, parity


def test_kernels_give_the_same_logits_and_gradients() -> None:
    with ts.use("interpret"):
        for parity in parities(LlamaTask(INTERPRETED), ["v3", "v4"], torch.float32, CPU, 1):
            assert parity.passed, parity


@pytest.mark.slow  # its layer is compiled in tests/models/test_llama_fused_layer.py
def test_v4_compiles_as_one_graph() -> None:
    model: Any = Llama(replace(TINY, num_layers=1), llama.version("v4").parts)
    expected = model(tokens(), tokens())
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = compiled(tokens(), tokens())
    assert torch.allclose(found, expected, atol=1e-5)
    found.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", llama.VERSION_NAMES)
def test_every_version_matches_on_a_gpu(variant: str, dtype: torch.dtype) -> None:
    (parity,) = parities(LlamaTask({}), [variant], dtype, Place(torch.device("cuda", 0)), 8)
    assert parity.passed, parity
