"""Folding chains: deterministic, and their distances are a function of the alignment."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tilesmith.training.data.folding_chains import BIN_WIDTH, NOISE, FoldingChains, positions, turn_matrices


def most_common(alignments: NDArray[np.int64], types: int) -> NDArray[np.int64]:
    """Return the most common type of each column, […, residues]."""
    counts = np.stack([(alignments == one).sum(axis=-2) for one in range(types)], axis=-1)
    common: NDArray[np.int64] = counts.argmax(axis=-1)
    return common


@pytest.mark.parametrize("num_sequences", [1, 3, 4, 5, 16])
def test_alignment_determines_the_distances(num_sequences: int) -> None:
    """Else the best loss would be above zero."""
    chains = FoldingChains(12, num_sequences, 6, 40, seed=3)
    alignments, bins = chains.batches(range(3), 5)
    found = most_common(alignments, 6)
    for step in range(3):
        assert np.array_equal(chains._bins(found[step]), bins[step])
    assert chains.best_loss == 0.0


def test_every_column_has_the_stated_noise() -> None:
    alignments, _ = FoldingChains(30, 16, 20, 64).batches(range(2), 8)
    is_noise = alignments != most_common(alignments, 20)[..., None, :]
    assert bool((is_noise.sum(axis=-2) == NOISE * 16).all())
    assert is_noise[..., 0, :].mean() == pytest.approx(NOISE, abs=0.06), "the target's row has the same noise"


def test_bins_match_the_distances_between_residues() -> None:
    _, bins = FoldingChains(20, 4, 20, 8).batches(range(4), 4)
    assert bins.shape == (4, 4, 20, 20)
    assert np.array_equal(bins, bins.swapaxes(-1, -2))
    assert bool((bins.diagonal(0, -2, -1) == 0).all())
    assert bool((bins.diagonal(1, -2, -1) == 1 / BIN_WIDTH).all()), "neighbours are one step apart"
    assert bins.max() == 7, "the last bin holds all larger distances"
    assert len(np.unique(bins.diagonal(2, -2, -1))) > 1, "the residue in between determines the distance"


def test_residue_types_turn_the_chain() -> None:
    """A right angle at every residue and no twist make a closed square."""
    square = turn_matrices(np.array([np.pi / 2]), np.array([0.0]))
    (places,) = positions(np.broadcast_to(square, (1, 5, 3, 3)))
    assert np.allclose(places[4], places[0], atol=1e-12)
    assert np.allclose(np.linalg.norm(places[2] - places[0]), 2**0.5)
    (twisted,) = positions(np.broadcast_to(turn_matrices(np.array([np.pi / 2]), np.array([np.pi / 2])), (1, 5, 3, 3)))
    assert np.linalg.norm(twisted[3] - twisted[0]) == pytest.approx(3**0.5), "a twist makes the chain leave the plane"


def test_batch_of_a_step_depends_on_seed_and_step_only() -> None:
    together = FoldingChains(8, 4, 5, 16, seed=2).batches(range(6), 3)
    for whole, part in zip(together, FoldingChains(8, 4, 5, 16, seed=2).batches(range(4, 6), 3), strict=True):
        assert np.array_equal(part, whole[4:])
        assert not np.array_equal(whole[0], whole[1])
    for whole, other in zip(together, FoldingChains(8, 4, 5, 16, seed=3).batches(range(6), 3), strict=True):
        assert not np.array_equal(whole, other)
