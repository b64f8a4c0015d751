"""Tiny OpenFold: what the model computes, and that its versions compute the same."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.models import openfold
from tilesmith.models.openfold import Config, OpenFold
from tilesmith.ops.triangle_multiply import operator as triangle_multiply
from tilesmith.training.data.tasks import OpenFoldTask
from tilesmith.training.results.parity import parities
from tilesmith.training.running.distributed import Place
from tilesmith.training.running.run import Run, Settings

SIZES = {"num_residues": 9, "num_sequences": 5, "msa_dim": 16, "pair_dim": 24, "num_blocks": 2, "outer_dim": 4}
INTERPRETED = {"num_residues": 4, "num_sequences": 2, "msa_dim": 8, "pair_dim": 8, "num_blocks": 1, "outer_dim": 3}
TINY = Config(**SIZES)
CPU = Place(torch.device("cpu"))


def model_of(variant: str = "v1", config: Config = TINY) -> OpenFold:
    return OpenFold(config, openfold.version(variant).parts)


def batch() -> tuple[Tensor, Tensor]:
    alignments, bins = OpenFoldTask(SIZES).batches(range(1), 2)
    return alignments[0], bins[0]


def test_default_sizes_are_those_of_the_workshop() -> None:
    assert asdict(Config()) == {
        "num_residues": 64, "num_sequences": 16, "msa_dim": 64, "pair_dim": 128, "num_blocks": 4, "head_dim": 32,
        "outer_dim": 32, "residue_types": 20, "num_bins": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"num_residues": 0}, "num_residues is 0, but must be at least 1"),
        ({"num_blocks": -1}, "num_blocks is -1, but must be at least 1"),
        ({"head_dim": 7}, "head_dim is 7, which does not divide msa_dim 64"),
        ({"head_dim": 64, "pair_dim": 96}, "head_dim is 64, which does not divide pair_dim 96"),
        ({"head_dim": -8}, "head_dim is -8"),
        ({"num_bins": 1}, "num_bins 1, but both must be at least 2"),
    ],
)
def test_rejects_inconsistent_sizes(sizes: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Config(**sizes)


def test_head_dim_defaults_to_a_common_divisor() -> None:
    assert Config(msa_dim=48, pair_dim=40).head_dim == 8


def test_first_loss_is_the_loss_of_guessing() -> None:
    assert model_of()(*batch()).item() == pytest.approx(torch.tensor(64.0).log().item(), abs=0.05)


def test_logits_are_symmetric() -> None:
    with torch.no_grad():
        logits = model_of()(batch()[0])
    assert logits.shape == (2, 9, 9, 64)
    torch.testing.assert_close(logits, logits.transpose(1, 2))


def test_loss_is_the_cross_entropy_of_the_logits() -> None:
    model, (alignments, bins) = model_of(), batch()
    likelihoods = model(alignments).log_softmax(-1)
    expected = -likelihoods.gather(-1, bins[..., None]).mean()
    torch.testing.assert_close(model(alignments, bins), expected)


def test_order_of_the_other_sequences_does_not_matter() -> None:
    model, (alignments, _) = model_of(), batch()
    turned = torch.cat((alignments[:, :1], alignments[:, 1:].flip(1)), dim=1)
    changed = torch.cat((alignments[:, :1], (alignments[:, 1:] + 1) % 20), dim=1)
    with torch.no_grad():
        before = model(alignments)
        torch.testing.assert_close(model(turned), before)
        assert not torch.allclose(model(changed), before, atol=1e-5)


def test_every_parameter_gets_a_gradient_above_rounding() -> None:
    """Also those of the alignment in the last block, through the outer product."""
    model = model_of().double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5, generator=generator)
    model(*batch()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.norm()) > 1e-8, name


def test_all_versions_share_one_state_dict() -> None:
    first = model_of().state_dict()
    for variant in openfold.VERSION_NAMES:
        model = model_of(variant)
        assert list(model.state_dict()) == list(first)
        for name, value in model.state_dict().items():
            assert torch.equal(value, first[name]), "they start alike"
        model.load_state_dict(first)


def test_rejects_unknown_version() -> None:
    with pytest.raises(ValueError, match="version is 'v5', but must be one of v1, v2, v3, v4"):
        openfold.version("v5")


def test_every_version_gives_the_same_logits_and_gradients() -> None:
    # One block: the versions differ inside a block, and their losses below are those of two.
    found = parities(OpenFoldTask({**SIZES, "num_blocks": 1}), list(openfold.VERSION_NAMES), torch.float32, CPU, 2)
    for parity in found:
        assert parity.passed, parity


@pytest.mark.parametrize(
    ("most_at_once", "versions"),
    [
        pytest.param(0, ["v4"], id="as if large", marks=pytest.mark.slow),
        pytest.param(triangle_multiply.MOST_FUSED_EXACT_ELEMENTS, ["v3", "v4"], id="small"),
    ],
)
def test_kernels_give_the_same_logits_and_gradients(
    monkeypatch: pytest.MonkeyPatch, most_at_once: int, versions: list[str]
) -> None:
    """Also the kernels for sizes that are too large for the interpreter."""
    monkeypatch.setattr(triangle_multiply, "MOST_FUSED_EXACT_ELEMENTS", most_at_once)
    with ts.use("interpret"):
        for parity in parities(OpenFoldTask(INTERPRETED), versions, torch.float32, CPU, 1):
            assert parity.passed, parity


def losses(sizes: dict[str, Any], **settings: Any) -> list[float]:
    run = Run(OpenFoldTask(sizes), Settings(**settings), CPU)
    record = run.train()
    run.close()
    return record.losses


@pytest.mark.parametrize("variant", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("v2", "v3")), "v4"])
def test_every_version_has_the_same_losses(variant: str) -> None:
    how = {"num_steps": 6, "batch_size": 2, "learning_rate": 3e-3}
    assert losses(SIZES, **how, variant=variant) == pytest.approx(losses(SIZES, **how), abs=1e-4)


@pytest.mark.slow  # the test above compares the gradients
def test_kernels_have_the_same_losses() -> None:
    how = {"num_steps": 3, "batch_size": 1, "learning_rate": 1e-2}
    expected = losses(INTERPRETED, **how)
    with ts.use("interpret"):
        assert losses(INTERPRETED, **how, variant="v4") == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_v4_compiles_as_one_graph() -> None:
    model: Any = model_of("v4", Config(**{**SIZES, "num_blocks": 1}))
    expected = model(*batch())
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = compiled(*batch())
    assert torch.allclose(found, expected, atol=1e-5)
    found.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", openfold.VERSION_NAMES)
def test_every_version_matches_on_a_gpu(variant: str, dtype: torch.dtype) -> None:
    (parity,) = parities(OpenFoldTask({}), [variant], dtype, Place(torch.device("cuda", 0)), 4)
    assert parity.passed, parity
