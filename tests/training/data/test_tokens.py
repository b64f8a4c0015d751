"""Token data: deterministic, and of the stated entropy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilesmith.training.data.tokens import DataError, MarkovChain, TextBytes


def test_sampled_entropy_matches_best_loss() -> None:
    """The entropy of the second of two neighbours, given the first, counted from samples."""
    chain = MarkovChain(30, seed=3)
    sequences = chain.sequences(range(40), 32, 200)
    pairs = np.zeros((30, 30))
    np.add.at(pairs, (sequences[..., :-1].ravel(), sequences[..., 1:].ravel()), 1)
    likelihoods = pairs / pairs.sum(1, keepdims=True).clip(1)
    entropies = -np.sum(likelihoods * np.log(likelihoods, where=likelihoods > 0, out=np.zeros_like(pairs)), axis=1)
    found = np.sum(entropies * pairs.sum(1)) / pairs.sum()
    assert found == pytest.approx(chain.best_loss, rel=0.005)
    assert all((row > 0).sum() == MarkovChain.FOLLOWERS for row in pairs if row.sum() > 1000)


def test_only_the_last_token_predicts_the_next() -> None:
    """Else the best loss would be lower than stated."""
    chain = MarkovChain(4, seed=1)
    sequences = chain.sequences(range(20), 64, 400)
    triples = np.zeros((4, 4, 4))
    np.add.at(triples, tuple(sequences[..., start : start + 398].ravel() for start in range(3)), 1)
    given_two = triples / triples.sum(2, keepdims=True)
    given_one = triples.sum(0) / triples.sum((0, 2))[:, None]
    assert np.abs(given_two - given_one).max() < 0.02


def test_token_frequencies_are_uneven() -> None:
    occurrences = np.bincount(MarkovChain(1000).sequences(range(20), 8, 128).ravel(), minlength=1000)
    shares = occurrences[occurrences > 0] / occurrences.sum()
    assert 3.0 < -np.sum(shares * np.log(shares)) < 5.5, "between the entropy of the chain and ln 1000"


def test_batch_of_a_step_depends_on_seed_and_step_only() -> None:
    together = MarkovChain(50, seed=2).sequences(range(6), 4, 9)
    assert np.array_equal(MarkovChain(50, seed=2).sequences(range(4, 6), 4, 9), together[4:])
    assert not np.array_equal(together[0], together[1])
    assert not np.array_equal(MarkovChain(50, seed=3).sequences(range(6), 4, 9), together)


def test_text_sequences_start_at_random_positions(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    text = TextBytes(path, seed=1)
    sequences = text.sequences(range(30), 4, 10)
    assert sequences.shape == (30, 4, 10)
    assert bool((np.diff(sequences, axis=-1) == 1).all()), "sequences are contiguous in the file"
    assert len(np.unique(sequences[..., 0])) > 50
    assert sequences.max() > 195, "the end of the file is used too"
    assert text.best_loss is None
    assert np.array_equal(TextBytes(path, seed=1).sequences(range(5, 6), 4, 10)[0], sequences[5])


def test_file_of_exactly_one_sequence_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"abcd")
    assert TextBytes(path).sequences(range(1), 2, 4).tolist() == [[[97, 98, 99, 100]] * 2]
    with pytest.raises(DataError, match="holds 4 bytes, but a sequence needs 5"):
        TextBytes(path).sequences(range(1), 2, 5)


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "cannot read .*No such file"), (b"", "is empty"), ("directory", "cannot read")]
)
def test_rejects_unusable_file_by_name(tmp_path: Path, content: bytes | str | None, complaint: str) -> None:
    path = tmp_path / "text"
    if content == "directory":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        TextBytes(path)
