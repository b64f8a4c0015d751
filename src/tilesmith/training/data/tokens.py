"""Token data: a Markov chain whose entropy is known, or the bytes of a file.

Seed and step number alone determine the batch of a step. So a resumed run, or a run on several GPUs, sees the same
batches.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]

BYTES = 256


class DataError(Exception):
    """The data are unusable; the message is one line for the user."""


class TokenSource(Protocol):
    """A source of token sequences. `best_loss` is the lowest loss that any model can reach, or None where unknown."""

    vocab_size: int
    best_loss: float | None
    described: str

    def sequences(self, steps: range, batch_size: int, length: int) -> Tokens:
        """Return the tokens of these steps, [steps, batch, length]."""
        ...


class MarkovChain:
    """A Markov chain: one of a few followers comes after each token, with Zipf's probabilities, 1/1 : 1/2 : 1/3 …

    Every token has the same probabilities but other followers. So the entropy of the next token is the same number in
    every state, and no model reaches a lower loss. Some tokens follow many others and some follow few, as words do: a
    model first learns how often each token occurs, and then which token follows which.
    """

    FOLLOWERS = 8

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        count = min(self.FOLLOWERS, vocab_size)
        likelihoods = 1.0 / np.arange(1, count + 1)
        likelihoods /= likelihoods.sum()
        self.best_loss: float | None = float(-(likelihoods * np.log(likelihoods)).sum())
        self._upper_bounds = likelihoods.cumsum()[:-1]
        self._popularity = 1.0 / np.arange(1, vocab_size + 1)
        self._popularity /= self._popularity.sum()
        self._followers = self._chosen_followers(count)
        self.described = f"a chain of {vocab_size} tokens with {count} followers each"

    def _chosen_followers(self, count: int) -> Tokens:
        """Return the followers of each token, [vocabulary, count], distinct and the most probable first."""
        generator = _generator(self._seed)
        # Gumbel top-k: the largest of log-probability plus Gumbel noise are a sample without replacement.
        keys = np.log(self._popularity) + generator.gumbel(size=(self.vocab_size, self.vocab_size))
        followers: Tokens = generator.permuted(np.argpartition(-keys, count - 1)[:, :count], axis=1)
        return followers

    def sequences(self, steps: range, batch_size: int, length: int) -> Tokens:
        tokens = np.empty((len(steps), batch_size, length), np.int64)
        choices = np.empty_like(tokens)
        for place, step in enumerate(steps):
            generator = _generator(self._seed, step)
            tokens[place, :, 0] = generator.choice(self.vocab_size, size=batch_size, p=self._popularity)
            choices[place] = np.searchsorted(self._upper_bounds, generator.random((batch_size, length)), side="right")
        for place in range(1, length):
            tokens[..., place] = self._followers[tokens[..., place - 1], choices[..., place]]
        return tokens


class TextBytes:
    """Sequences of bytes that start at random positions of a file."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.vocab_size = BYTES
        self.best_loss: float | None = None
        self._path = path
        self._seed = seed
        try:
            if path.stat().st_size == 0:
                raise DataError(f"{path} is empty")
            self._bytes = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:  # ValueError: a device or a pipe, which has no size
            raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
        self.described = f"{len(self._bytes):,} bytes of {path}"

    def sequences(self, steps: range, batch_size: int, length: int) -> Tokens:
        places = len(self._bytes) - length + 1
        if places < 1:
            raise DataError(f"{self._path} holds {len(self._bytes)} bytes, but a sequence needs {length}: seq_len + 1")
        starts = [_generator(self._seed, step).integers(places, size=batch_size) for step in steps]
        stretches: Tokens = self._bytes[np.stack(starts)[..., None] + np.arange(length)].astype(np.int64)
        return stretches

    def sha256(self) -> str:
        """Return the SHA-256 of the bytes that were there when the run started."""
        return hashlib.sha256(self._bytes.data).hexdigest()


def _generator(seed: int, *path: int) -> np.random.Generator:
    """Return an independent generator for each seed and path; the path is, for example, a step's number."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=path)))
