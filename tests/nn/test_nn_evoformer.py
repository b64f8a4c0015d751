"""The Evoformer's modules against the published algorithms in plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilesmith as ts
from tilesmith.nn.evoformer import OPENFOLD, EvoformerBlock, from_openfold
from tilesmith.nn.evoformer_reference import PlainEvoformerBlock
from tilesmith.ops.triangle_multiply import operator, triangle_multiply

SMALL: dict[str, Any] = {
    "msa_channels": 8, "pair_channels": 6, "msa_heads": 2, "pair_heads": 2, "head_size": 4, "outer_channels": 3,
    "triangle_channels": 5, "transition_factor": 2,
}  # fmt: skip
BATCH, SEQUENCES, RESIDUES = 2, 3, 5


@pytest.fixture(autouse=True)
def the_same_numbers() -> None:
    torch.manual_seed(0)


def blocks(**options: Any) -> tuple[EvoformerBlock, PlainEvoformerBlock]:
    """Return our block and the plain one with the same random weights, also of norms."""
    ours, plain = EvoformerBlock(**SMALL, **options), PlainEvoformerBlock(**SMALL, **options)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    plain.load_state_dict(ours.state_dict())
    return ours.eval(), plain.eval()


def inputs(masked: bool = True) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    m = torch.randn(BATCH, SEQUENCES, RESIDUES, SMALL["msa_channels"])
    z = torch.randn(BATCH, RESIDUES, RESIDUES, SMALL["pair_channels"])
    if not masked:
        return m, z, None, None
    return m, z, torch.rand(m.shape[:3]) > 0.3, torch.rand(z.shape[:3]) > 0.3


def results(block: torch.nn.Module, given: tuple[Tensor | None, ...], **options: Any) -> dict[str, Tensor]:
    """Return both outputs, and the gradients of inputs and parameters."""
    m, z = (one.detach().clone().requires_grad_() for one in given[:2] if one is not None)
    made = block(m, z, *given[2:], **options)
    leaves = {"m": m, "z": z, **dict(block.named_parameters())}
    loss = sum(one.sin().sum() for one in made)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"m out": made[0], "z out": made[1], **dict(zip(leaves, gradients, strict=True))}


def assert_alike(ours: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_block_matches_the_published_one(masked: bool) -> None:
    ours, plain = blocks()
    given = inputs(masked)
    assert_alike(results(ours, given), results(plain, given))


def test_block_on_kernels_matches_the_published_one() -> None:
    ours, plain = blocks()
    given = tuple(None if one is None else one[:1] for one in inputs())
    with ts.use("interpret"):
        found = results(ours, given)
    assert_alike(found, results(plain, given))


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_chunks_give_the_same_result(chunk: int) -> None:
    ours, _ = blocks()
    given = inputs()
    assert_alike(results(ours, given, chunk=chunk), results(ours, given))


def test_chunks_reach_the_triangle_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int | None] = []

    def noted(*arguments: Any, chunk: int | None, **named: Any) -> Any:
        given.append(chunk)
        return triangle_multiply(*arguments, chunk=chunk, **named)

    monkeypatch.setattr("tilesmith.nn.evoformer.triangle_multiply", noted)
    ours, _ = blocks()
    ours(*inputs(), chunk=3)
    ours(*inputs())
    assert given == [3, 3, None, None]


@pytest.mark.parametrize("residues", [1, 4])
def test_takes_any_number_of_residues(residues: int) -> None:
    ours, plain = blocks()
    m, z = (
        torch.randn(1, 2, residues, SMALL["msa_channels"]),
        torch.randn(1, residues, residues, SMALL["pair_channels"]),
    )
    assert_alike(results(ours, (m, z)), results(plain, (m, z)))


def test_padding_does_not_change_the_rest() -> None:
    """The last residue and the last sequence are padding; their content must not matter."""
    ours, _ = blocks()
    m, z, _, _ = inputs()
    msa_mask, pair_mask = torch.ones(m.shape[:3], dtype=torch.bool), torch.ones(z.shape[:3], dtype=torch.bool)
    msa_mask[:, -1] = msa_mask[:, :, -1] = False
    pair_mask[:, -1] = pair_mask[:, :, -1] = False
    right = ours(m, z, msa_mask, pair_mask)
    junk_m, junk_z = m.masked_fill(~msa_mask[..., None], 7.0), z.masked_fill(~pair_mask[..., None], -9.0)
    found = ours(junk_m, junk_z, msa_mask, pair_mask)
    for one, other, mask in zip(found, right, (msa_mask, pair_mask), strict=True):
        torch.testing.assert_close(one[mask], other[mask], rtol=0, atol=0)
        assert not torch.equal(one[~mask], other[~mask])


def test_fully_masked_input_gives_finite_results() -> None:
    ours, _ = blocks()
    m, z, _, _ = inputs()
    found = results(ours, (m, z, torch.zeros(m.shape[:3]) > 0, torch.zeros(z.shape[:3]) > 0))
    assert all(one.isfinite().all() for one in found.values())


def test_dropout_removes_whole_rows_or_columns_in_training_only() -> None:
    ours, _ = blocks(msa_dropout=0.5, pair_dropout=0.5)
    ours.train()
    update = ours._dropped(torch.ones(2, 30, 20, 3), 0.5, 1)
    assert set(update.flatten().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(update, update[:, :1].expand_as(update))
    given = inputs()
    assert not torch.allclose(ours(*given)[1], ours(*given)[1])
    ours.eval()
    torch.testing.assert_close(ours(*given)[1], ours(*given)[1], rtol=0, atol=0)


def sums_in(results: tuple[Tensor, ...]) -> int:
    """Return the number of additions in the autograd graph."""
    nodes, seen = [one.grad_fn for one in results], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes.extend(following for following, _ in node.next_functions)
    return sum(node.name().startswith("AddBackward") for node in seen)


def test_parts_add_their_updates_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts except the outer product mean; small triangle multiplications only on separate GEMMs."""
    monkeypatch.setattr(operator, "MOST_FUSED_EXACT_ELEMENTS", 0)
    ours, _ = blocks(msa_dropout=0.5, pair_dropout=0.5)
    given = tuple(None if one is None else one[:1] for one in inputs())
    with ts.use("interpret"):
        assert sums_in(ours(*given)) == 1
        assert sums_in(ours.train()(*given)) == 1 + 5
        ours.msa_dropout = ours.pair_dropout = 0.0
        assert sums_in(ours(*given)) == 1


def test_block_on_separate_gemms_matches_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "MOST_FUSED_EXACT_ELEMENTS", 0)
    ours, plain = blocks()
    given = tuple(None if one is None else one[:1] for one in inputs())
    with ts.use("interpret"):
        found = results(ours, given)
    assert_alike(found, results(plain, given))


def test_every_part_returns_its_update_or_the_sum() -> None:
    m, z, msa_mask, pair_mask = inputs()
    for block in blocks():
        for name, part in block.named_children():
            x = m if name.startswith("msa") else z
            if name == "outer_product_mean":
                continue
            others: list[Tensor | None] = [z] if name == "msa_row_attention" else []
            others += [] if name.endswith("transition") else [msa_mask if x is m else pair_mask]
            torch.testing.assert_close(part(x, *others, residual=True), x + part(x, *others))


def openfold_state(block: EvoformerBlock, prefix: str = "") -> dict[str, Tensor]:
    """Return random weights with the names and shapes of an OpenFold block."""
    ours, state = block.state_dict(), {}
    for theirs, (part, layers, packed) in OPENFOLD.items():
        pair = theirs.startswith(("tri_", "pair_"))
        for parameter in ("weight", "bias"):
            for layer, name in layers.items():
                if f"{part}.{name}.{parameter}" in ours:
                    shape = ours[f"{part}.{name}.{parameter}"].shape
                    state[f"{prefix if pair else ''}{theirs}.{layer}.{parameter}"] = torch.randn(shape) / 2
            for name, members in packed.items():
                if f"{part}.{name}.{parameter}" in ours:
                    rows, *columns = ours[f"{part}.{name}.{parameter}"].shape
                    for member in members:
                        shape = (rows // len(members), *columns)
                        state[f"{prefix if pair else ''}{theirs}.{member}.{parameter}"] = torch.randn(shape) / 2
    return state


class OpenFold:
    """Layers by their names in a checkpoint."""

    def __init__(self, state: dict[str, Tensor], part: str) -> None:
        self.state, self.part = state, part

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{self.part}.{name}.weight"], self.state.get(f"{self.part}.{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = (self.state[f"{self.part}.{name}.{which}"] for which in ("weight", "bias"))
        return F.layer_norm(x, weight.shape, weight, bias)


def test_openfold_weights_give_its_triangle_multiplication() -> None:
    block = EvoformerBlock(**SMALL)
    state = openfold_state(block)
    block.load_state_dict(from_openfold(state))
    z = inputs()[1]
    theirs = OpenFold(state, "tri_mul_in")
    zn = theirs.norm("layer_norm_in", z)
    a = theirs.linear("linear_a_g", zn).sigmoid() * theirs.linear("linear_a_p", zn)
    b = theirs.linear("linear_b_g", zn).sigmoid() * theirs.linear("linear_b_p", zn)
    x = theirs.norm("layer_norm_out", torch.einsum("bkic,bkjc->bijc", a, b))
    wanted = theirs.linear("linear_z", x) * theirs.linear("linear_g", zn).sigmoid()
    torch.testing.assert_close(block.triangle_multiplication_incoming(z), wanted, rtol=1e-4, atol=1e-5)


def test_openfold_weights_give_its_triangle_attention() -> None:
    """In OpenFold the ending node is the starting node of the transposed pairs."""
    block = EvoformerBlock(**SMALL)
    state = openfold_state(block)
    block.load_state_dict(from_openfold(state))
    z = inputs()[1]
    theirs = OpenFold(state, "tri_att_end")
    zn = theirs.norm("layer_norm", z.transpose(1, 2))
    q, k, v = (theirs.linear(f"mha.linear_{name}", zn).view(*zn.shape[:3], 2, 4).transpose(2, 3) for name in "qkv")
    bias = theirs.linear("linear", zn).permute(0, 3, 1, 2)[:, None]
    weights = (q @ k.transpose(-1, -2) / 4**0.5 + bias).softmax(-1)
    attended = (weights @ v).transpose(2, 3).flatten(-2) * theirs.linear("mha.linear_g", zn).sigmoid()
    wanted = theirs.linear("mha.linear_o", attended).transpose(1, 2)
    torch.testing.assert_close(block.triangle_attention_ending(z), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", ["core.", "pair_stack."])
def test_from_openfold_accepts_names_of_all_versions(prefix: str) -> None:
    block = EvoformerBlock(**SMALL)
    assert from_openfold(openfold_state(block, prefix)).keys() == block.state_dict().keys()


def test_from_openfold_rejects_unknown_names() -> None:
    state = openfold_state(EvoformerBlock(**SMALL))
    with pytest.raises(
        ValueError, match=r"^from_openfold: block has tri_mul_up\.linear_z\.weight, which EvoformerBlock does not have"
    ):
        from_openfold({**state, "tri_mul_up.linear_z.weight": torch.ones(1)})


def test_rejects_chunk_of_zero() -> None:
    with pytest.raises(ValueError, match="chunk is 0, but must be at least 1"):
        EvoformerBlock(**SMALL)(*inputs(), chunk=0)


def test_block_returns_the_input_shapes() -> None:
    block = EvoformerBlock(64, 128, msa_heads=4, pair_heads=4, head_size=16, outer_channels=16)
    m, z = block(torch.randn(2, 4, 6, 64), torch.randn(2, 6, 6, 128))
    assert m.shape == (2, 4, 6, 64)
    assert z.shape == (2, 6, 6, 128)
