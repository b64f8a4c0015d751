"""Synthetic protein chains: alignments of sequences, and the residue distances that follow from them.

A chain goes from residue to residue in steps of length 1. Each residue type turns the chain by one angle and twists it
by another, so the sequence of types determines the shape. The alignment holds noisy copies of that sequence: in every
column a fixed number of rows, fewer than half, have another type. Any row may be wrong, the target's row too, but the
majority of a column is always right. So the distances are a function of the alignment, and the best loss is zero.

Seed and step number alone determine the batch of a step, as for tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOISE = 0.25
"""The fraction of rows with another type in every column, rounded down."""
BIN_WIDTH = 0.5
"""In step lengths. Bin n holds distances that round to n widths; the last bin also holds all larger ones."""
LARGEST_TURN = 1.4
"""The largest angle of a type, in radians. Above a right angle chains would curl up and fill only a few bins."""

Integers = NDArray[np.int64]
Real = NDArray[np.float64]


class FoldingChains:
    """Alignments, with the target sequence first, and the bins of the distances between residues."""

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
        self._turns = turn_matrices(
            generator.uniform(0, LARGEST_TURN, residue_types), generator.uniform(-np.pi, np.pi, residue_types)
        )

    def batches(self, steps: range, batch_size: int) -> tuple[Integers, Integers]:
        """Return alignments [steps, batch, sequences, residues] and bins [steps, batch, residues, residues]."""
        made = [self._batch(step, batch_size) for step in steps]
        return np.stack([alignments for alignments, _ in made]), np.stack([bins for _, bins in made])

    def _batch(self, step: int, batch_size: int) -> tuple[Integers, Integers]:
        generator = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(step,)))
        types = generator.integers(self.residue_types, size=(batch_size, self.num_residues))
        return self._aligned(types, generator), self._bins(types)

    def _aligned(self, types: Integers, generator: np.random.Generator) -> Integers:
        shape = (len(types), self.num_sequences, self.num_residues)
        # The first rows of a random order, which differs between columns.
        is_noise = generator.random(shape).argsort(axis=1) < int(NOISE * self.num_sequences)
        others = generator.integers(1, self.residue_types, size=shape)
        aligned: Integers = (types[:, None] + is_noise * others) % self.residue_types
        return aligned

    def _bins(self, types: Integers) -> Integers:
        places = positions(self._turns[types])
        distances = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
        # Rounded to nearest, not down: neighbours are exactly two widths apart, which must not be a boundary of bins.
        bins: Integers = np.rint(distances / BIN_WIDTH).astype(np.int64).clip(max=self.num_bins - 1)
        return bins


def turn_matrices(angles: Real, twists: Real) -> Real:
    """Return [types, 3, 3] matrices: a twist around the direction of the chain, then a turn away from it."""
    cos, sin, none, one = np.cos(angles), np.sin(angles), np.zeros_like(angles), np.ones_like(angles)
    turned = np.stack([cos, -sin, none, sin, cos, none, none, none, one], axis=-1).reshape(-1, 3, 3)
    cos, sin = np.cos(twists), np.sin(twists)
    twisted = np.stack([one, none, none, none, cos, -sin, none, sin, cos], axis=-1).reshape(-1, 3, 3)
    both: Real = twisted @ turned
    return both


def positions(turns_along: Real) -> Real:
    """Return the positions [batch, residues, 3] of chains with these turn matrices [batch, residues, 3, 3]."""
    frame, place = np.eye(3), np.zeros((len(turns_along), 3))
    found = [place]
    for residue in range(1, turns_along.shape[1]):
        frame = frame @ turns_along[:, residue - 1]
        place = place + frame[..., 0]
        found.append(place)
    return np.stack(found, axis=1)
