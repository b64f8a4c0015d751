"""Chains to learn from: alignments of sequences, and distances that follow from them.

A chain goes from residue to residue in steps of one length. Each type of residue turns it by an angle and twists it by
another, so the sequence of types decides the shape. The alignment is of noisy copies of that sequence: in every column
a known share of the rows, fewer than half, has another type. So no row can be trusted, the target's not either, but the
type that most rows of a column have is the true one. Distances are a function of what the model sees, and the best
possible loss is zero.

What step number n trains on follows from the seed and n alone, as it does for tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOISE = 0.25
"""Of the rows in every column, rounded down."""
BIN_WIDTH = 0.5
"""Beside the length of a step. Bin n is for distances nearer to n widths than to others, the last for all beyond."""
MOST_TURNED = 1.4
"""The largest angle of a type, in radians: below a right angle, or chains would curl up in a few bins."""

Whole = NDArray[np.int64]
Real = NDArray[np.float64]


class Chains:
    """Alignments with the target sequence first, and the bins that distances between residues fall in."""

    best_loss = 0.0

    def __init__(
        self, num_residues: int, num_sequences: int, residue_types: int, num_bins: int, seed: int = 0
    ) -> None:  # fmt: skip
        self.num_residues = num_residues
        self.num_sequences = num_sequences
        self.residue_types = residue_types
        self.num_bins = num_bins
        self._seed = seed
        generator = np.random.default_rng(seed)
        self._turns = turns(
            generator.uniform(0, MOST_TURNED, residue_types), generator.uniform(-np.pi, np.pi, residue_types)
        )

    def batches(self, steps: range, batch_size: int) -> tuple[Whole, Whole]:
        """Alignments [steps, batch, sequences, residues] and bins [steps, batch, residues, residues]."""
        made = [self._batch(step, batch_size) for step in steps]
        return np.stack([alignments for alignments, _ in made]), np.stack([bins for _, bins in made])

    def _batch(self, step: int, batch_size: int) -> tuple[Whole, Whole]:
        generator = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(step,)))
        types = generator.integers(self.residue_types, size=(batch_size, self.num_residues))
        return self._aligned(types, generator), self._bins(types)

    def _aligned(self, types: Whole, generator: np.random.Generator) -> Whole:
        shape = (len(types), self.num_sequences, self.num_residues)
        # The first of a random order of the rows, in each column another.
        is_noise = generator.random(shape).argsort(axis=1) < int(NOISE * self.num_sequences)
        others = generator.integers(1, self.residue_types, size=shape)
        aligned: Whole = (types[:, None] + is_noise * others) % self.residue_types
        return aligned

    def _bins(self, types: Whole) -> Whole:
        places = positions(self._turns[types])
        distances = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
        # Rounded to the nearest, not down: neighbours are exactly two widths apart, which must not be a border.
        bins: Whole = np.rint(distances / BIN_WIDTH).astype(np.int64).clip(max=self.num_bins - 1)
        return bins


def turns(angles: Real, twists: Real) -> Real:
    """[types, 3, 3]: a twist around the direction of the chain, then a turn away from it."""
    cos, sin, none, one = np.cos(angles), np.sin(angles), np.zeros_like(angles), np.ones_like(angles)
    turned = np.stack([cos, -sin, none, sin, cos, none, none, none, one], axis=-1).reshape(-1, 3, 3)
    cos, sin = np.cos(twists), np.sin(twists)
    twisted = np.stack([one, none, none, none, cos, -sin, none, sin, cos], axis=-1).reshape(-1, 3, 3)
    both: Real = twisted @ turned
    return both


def positions(turns_along: Real) -> Real:
    """[batch, residues, 3] of chains whose residues turn them so, [batch, residues, 3, 3]."""
    frame, place = np.eye(3), np.zeros((len(turns_along), 3))
    found = [place]
    for residue in range(1, turns_along.shape[1]):
        frame = frame @ turns_along[:, residue - 1]
        place = place + frame[..., 0]
        found.append(place)
    return np.stack(found, axis=1)
