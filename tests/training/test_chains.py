"""Chains that can be learned: deterministic, and their distances a function of what a model sees."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tilesmith.training.chains import BIN_WIDTH, NOISE, Chains, positions, turns


def most_common(alignments: NDArray[np.int64], types: int) -> NDArray[np.int64]:
    """[…, residues]: the type that most rows of a column have."""
    counts = np.stack([(alignments == one).sum(axis=-2) for one in range(types)], axis=-1)
    common: NDArray[np.int64] = counts.argmax(axis=-1)
    return common


@pytest.mark.parametrize("num_sequences", [1, 3, 4, 5, 16])
def test_distances_follow_from_the_alignment(num_sequences: int) -> None:
    """Or the best loss would be more than it says: from most rows of each column, and the turn of each type."""
    chains = Chains(12, num_sequences, 6, 40, seed=3)
    alignments, bins = chains.batches(range(3), 5)
    found = most_common(alignments, 6)
    for step in range(3):
        assert np.array_equal(chains._bins(found[step]), bins[step])
    assert chains.best_loss == 0.0


def test_the_noise_is_as_much_as_it_says_in_every_column() -> None:
    alignments, _ = Chains(30, 16, 20, 64).batches(range(2), 8)
    is_noise = alignments != most_common(alignments, 20)[..., None, :]
    assert bool((is_noise.sum(axis=-2) == NOISE * 16).all())
    assert is_noise[..., 0, :].mean() == pytest.approx(NOISE, abs=0.06), "the target's row is no better than others"


def test_bins_are_of_distances_between_residues() -> None:
    _, bins = Chains(20, 4, 20, 8).batches(range(4), 4)
    assert bins.shape == (4, 4, 20, 20)
    assert np.array_equal(bins, bins.swapaxes(-1, -2))
    assert bool((bins.diagonal(0, -2, -1) == 0).all())
    assert bool((bins.diagonal(1, -2, -1) == 1 / BIN_WIDTH).all()), "neighbours are a step apart"
    assert bins.max() == 7, "what is beyond the last bin counts as in it"
    assert len(np.unique(bins.diagonal(2, -2, -1))) > 1, "the residue between two decides how far apart they are"


def test_a_chain_turns_as_its_residues_say() -> None:
    """A right angle at every residue, and no twist: around a square, back to the start."""
    square = turns(np.array([np.pi / 2]), np.array([0.0]))
    (places,) = positions(np.broadcast_to(square, (1, 5, 3, 3)))
    assert np.allclose(places[4], places[0], atol=1e-12)
    assert np.allclose(np.linalg.norm(places[2] - places[0]), 2**0.5)
    (twisted,) = positions(np.broadcast_to(turns(np.array([np.pi / 2]), np.array([np.pi / 2])), (1, 5, 3, 3)))
    assert np.linalg.norm(twisted[3] - twisted[0]) == pytest.approx(3**0.5), "with a twist it leaves the plane"


def test_a_step_is_the_same_however_it_is_asked_for() -> None:
    together = Chains(8, 4, 5, 16, seed=2).batches(range(6), 3)
    for whole, part in zip(together, Chains(8, 4, 5, 16, seed=2).batches(range(4, 6), 3), strict=True):
        assert np.array_equal(part, whole[4:])
        assert not np.array_equal(whole[0], whole[1])
    for whole, other in zip(together, Chains(8, 4, 5, 16, seed=3).batches(range(6), 3), strict=True):
        assert not np.array_equal(whole, other)
