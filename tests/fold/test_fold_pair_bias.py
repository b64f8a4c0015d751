"""attention_pair_bias: both forms of cuEquivariance, masks, copies that share pairs, norms of q and k."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import published
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilesmith as ts
import tilesmith.fold as cuequivariance_torch

BATCH, LENGTH, WIDTH, HEADS, HEAD, PAIR = 2, 7, 12, 3, 4, 6
apb = cuequivariance_torch.attention_pair_bias
BIASES = ("b_proj_q", "b_proj_k", "b_proj_v", "b_proj_g", "b_proj_o", "b_proj_z")
ROWS = {"q": HEADS * HEAD, "k": HEADS * HEAD, "v": HEADS * HEAD, "g": HEADS * HEAD, "o": WIDTH, "z": HEADS}


@pytest.fixture(autouse=True, params=["torch", "interpret"])
def route(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use(request.param):
        yield


def parameters(*biases: str, norms: bool = False) -> dict[str, Tensor]:
    columns = {"o": HEADS * HEAD, "z": PAIR}
    made = {
        f"w_proj_{name}": torch.randn(rows, columns.get(name, WIDTH)) * columns.get(name, WIDTH) ** -0.5
        for name, rows in ROWS.items()
    }
    sizes = {"a": WIDTH, "z": PAIR} | ({"q": HEADS * HEAD, "k": HEADS * HEAD} if norms else {})
    for name, size in sizes.items():
        made |= {f"w_ln_{name}": 1 + torch.randn(size) / 4, f"b_ln_{name}": torch.randn(size) / 4}
    return made | {name: torch.randn(ROWS[name[-1]]) / 4 for name in biases}


def inputs(copies: int = 1) -> dict[str, Tensor]:
    return {"single": torch.randn(BATCH * copies, LENGTH, WIDTH), "pair": torch.randn(BATCH, LENGTH, LENGTH, PAIR)}


def defaults(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that have no default."""
    return {"b_proj_q": None, "b_ln_a": None, **given}


def assert_same(
    tensors: dict[str, Tensor], given: dict[str, Tensor], mask: Tensor | None, dtype: torch.dtype = torch.float32
) -> None:
    def ours(single: Tensor, pair: Tensor, **weights: Tensor) -> Tensor:
        return apb(single, pair, mask, HEADS, **defaults(weights))[0]

    def plain(single: Tensor, pair: Tensor, **weights: Tensor) -> Tensor:
        return published.attention_pair_bias(single, pair, mask, HEADS, weights)[0]

    published.assert_as_published(ours, plain, {**tensors, **given}, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_output_and_gradients_as_published(dtype: torch.dtype) -> None:
    mask = (torch.rand(BATCH, LENGTH) > 0.3).float()
    mask[1] = 0  # a sequence without residues attends to all of its padding
    assert_same(inputs(), parameters("b_proj_q"), mask, dtype)


def test_all_biases_and_norms_of_queries_and_keys() -> None:
    assert_same(inputs(), parameters(*BIASES, norms=True), None)


@pytest.mark.parametrize("of_copies", [False, True], ids=["mask of the batch", "mask of the copies"])
def test_copies_share_their_pairs(of_copies: bool) -> None:
    mask = torch.rand(BATCH * (3 if of_copies else 1), LENGTH) > 0.3
    mask[:, 0] = True
    assert_same(inputs(copies=3), parameters(), mask)


def test_bias_of_pairs_is_returned_and_taken_back() -> None:
    tensors, given = inputs(), parameters()
    output, bias = apb(tensors["single"], tensors["pair"], None, HEADS, **defaults(given), return_z_proj=True)
    wanted, wanted_bias = published.attention_pair_bias(tensors["single"], tensors["pair"], None, HEADS, given)
    assert bias is not None
    torch.testing.assert_close(bias, wanted_bias, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)
    without = {name: one for name, one in given.items() if not name.endswith("_z")}
    again, nothing = apb(tensors["single"], bias, None, HEADS, **defaults(without), is_cached_z_proj=True)
    assert nothing is None
    torch.testing.assert_close(again, output)


def test_rms_norm() -> None:
    tensors = inputs()
    given = {name: one for name, one in parameters().items() if not name.startswith("b_ln")}
    output, _ = apb(tensors["single"], tensors["pair"], None, HEADS, **defaults(given), norm_kind="rms_norm", eps=1e-6)
    single, pair = (F.rms_norm(tensors[name], (size,), given[f"w_ln_{short}"], 1e-6)
                    for name, size, short in (("single", WIDTH, "a"), ("pair", PAIR, "z")))  # fmt: skip
    q, k, v = (F.linear(single, given[f"w_proj_{one}"]).unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for one in "qkv")  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    bias = F.linear(pair, given["w_proj_z"]).permute(0, 3, 1, 2)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
    wanted = F.linear(F.linear(single, given["w_proj_g"]).sigmoid() * attended, given["w_proj_o"])
    torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)


def test_small_penalty_is_added_to_scores() -> None:
    tensors, given = inputs(), parameters()
    mask = torch.rand(BATCH, LENGTH) > 0.3
    output, _ = apb(tensors["single"], tensors["pair"], mask, HEADS, **defaults(given), inf=2.0)
    without, _ = apb(tensors["single"], tensors["pair"], mask, HEADS, **defaults(given))
    assert not torch.allclose(output, without)
    bias = apb(tensors["single"], tensors["pair"], None, HEADS, **defaults(given), return_z_proj=True)[1]
    assert bias is not None
    lowered = bias + (mask.float() - 1)[:, None, None, :] * 2.0
    wanted, _ = apb(tensors["single"], lowered, None, HEADS, **defaults(given), is_cached_z_proj=True)
    torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)


def test_form_before_0_10_takes_projected_heads() -> None:
    tensors, given = inputs(copies=2), parameters("b_proj_g", "b_proj_o")
    mask = torch.ones(BATCH, LENGTH)
    mask[0, 4:] = 0
    a = F.layer_norm(tensors["single"], (WIDTH,), given["w_ln_a"], given["b_ln_a"])
    q, k, v = (F.linear(a, given[f"w_proj_{one}"]).unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for one in "qkv")  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    made, bias = apb(
        a, q, k, v, tensors["pair"], mask, HEADS, given["w_proj_z"], given["w_proj_g"], given["w_proj_o"],
        given["w_ln_z"], given["b_ln_z"], b_proj_g=given["b_proj_g"], b_proj_o=given["b_proj_o"],
    )  # fmt: skip
    wanted, wanted_bias = published.attention_pair_bias(tensors["single"], tensors["pair"], mask, HEADS, given)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias, wanted_bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_kind": "batch"}, "norm_kind is 'batch', but must be one of layer_norm, rms_norm"),
        ({"norm_kind": "rms_norm"}, "norm_kind is rms_norm, but a norm has a bias"),
        ({"w_proj_z": None}, "w_proj_z is missing"),
        ({"num_heads": 5}, "num_heads is 5, but must divide the 12 projected channels"),
        ({"mask": torch.ones(3, LENGTH)}, r"mask has shape \(3, 7\), but must be \[B, N\]"),
        ({"pair_repr": torch.ones(BATCH, 5, 5, PAIR)}, "the pairs have a bias of shape"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    tensors = inputs()
    arguments = {"single_repr": tensors["single"], "pair_repr": tensors["pair"], "mask": None, "num_heads": HEADS}
    with pytest.raises(ValueError, match=message):
        apb(**{**arguments, **defaults(parameters()), **change})
