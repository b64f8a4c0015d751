"""Training tasks: a model, its data, and the best loss that the data allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tilesmith.models import llama, openfold
from tilesmith.models.versions import Version
from tilesmith.training.data.folding_chains import FoldingChains
from tilesmith.training.data.tokens import MarkovChain, TextBytes

Batch = tuple[Tensor, ...]
"""The arguments of a model for one step; the first dimension of each counts samples."""


class Task(Protocol):
    """A model and its data. Called with a whole batch, the model returns its loss. Called without the batch's last
    tensor, the target, the model returns its predictions."""

    name: str
    versions: tuple[str, ...]
    rectified: bool
    """Whether the model has ReLUs: its gradients jump where an input of a ReLU crosses zero."""
    best_loss: float | None
    tokens_per_sample: int
    config: dict[str, Any]
    """Sizes, data and seed as plain data; a checkpoint must have the same."""
    defaults: dict[str, Any]
    """Defaults of this task that differ from those of `Settings`."""

    def version(self, name: str) -> Version[Any]: ...

    def model(self, version: Version[Any]) -> nn.Module:
        """Return the model with its initial parameters, which are the same for every version."""
        ...

    def batches(self, steps: range, batch_size: int) -> Batch:
        """Return the data of these steps on the CPU, with the steps as first dimension."""
        ...

    def parameter_count(self) -> int:
        """Return the number of parameters without building the model."""
        ...

    def data_sha256(self) -> str | None:
        """Return the SHA-256 of the data's file, or None where sizes and seed determine the data."""
        ...


class LlamaTask:
    """Tiny LLaMA on a token source of known entropy, or on the bytes of a file."""

    name = "llama"
    versions: tuple[str, ...] = llama.VERSION_NAMES
    rectified = False

    def __init__(self, sizes: dict[str, Any], data: Path | None = None, seed: int = 0) -> None:
        """`sizes` are fields of the model's Config. The data decide the vocabulary.

        Raises ValueError for sizes that are inconsistent, DataError for a file that is unusable.
        """
        self._source = MarkovChain(llama.Config.vocab_size, seed) if data is None else TextBytes(data, seed)
        self._sizes = llama.Config(**{**sizes, "vocab_size": self._source.vocab_size})
        self._seed = seed
        self.best_loss = self._source.best_loss
        self.tokens_per_sample = self._sizes.seq_len
        self.described = self._source.described
        self.config = {**asdict(self._sizes), "data": str(data) if data else None, "seed": seed}
        self.defaults: dict[str, Any] = {}
        self.batches(range(1), 1)  # raises DataError where the file is shorter than a sequence

    def version(self, name: str) -> Version[llama.Parts]:
        return llama.version(name)

    def model(self, version: Version[llama.Parts]) -> nn.Module:
        return llama.Llama(self._sizes, version.parts, seed=self._seed)

    def batches(self, steps: range, batch_size: int) -> Batch:
        """Return tokens and, as the target, the next token of each."""
        sequences = torch.from_numpy(self._source.sequences(steps, batch_size, self._sizes.seq_len + 1))
        return sequences[..., :-1].contiguous(), sequences[..., 1:].contiguous()

    def parameter_count(self) -> int:
        return _extrapolated(
            lambda depth: llama.Llama(replace(self._sizes, num_layers=depth)), depth=self._sizes.num_layers
        )

    def data_sha256(self) -> str | None:
        return self._source.sha256() if isinstance(self._source, TextBytes) else None


class OpenFoldTask:
    """Tiny OpenFold on chains whose alignment determines their shape."""

    name = "openfold"
    versions: tuple[str, ...] = openfold.VERSION_NAMES
    rectified = True

    def __init__(self, sizes: dict[str, Any], seed: int = 0) -> None:
        """`sizes` are fields of the model's Config. Raises ValueError for sizes that are inconsistent."""
        self._sizes = config = openfold.Config(**sizes)
        self._chains = FoldingChains(
            config.num_residues, config.num_sequences, config.residue_types, config.num_bins, seed
        )
        self._seed = seed
        self.best_loss: float | None = self._chains.best_loss
        self.tokens_per_sample = config.num_sequences * config.num_residues
        self.config = {**asdict(config), "seed": seed}
        self.defaults = {"batch_size": 4}

    def version(self, name: str) -> Version[openfold.Parts]:
        return openfold.version(name)

    def model(self, version: Version[openfold.Parts]) -> nn.Module:
        return openfold.OpenFold(self._sizes, version.parts, seed=self._seed)

    def batches(self, steps: range, batch_size: int) -> Batch:
        """Return alignments and, as the target, bins of the distances between residues."""
        alignments, bins = self._chains.batches(steps, batch_size)
        return torch.from_numpy(alignments), torch.from_numpy(bins)

    def parameter_count(self) -> int:
        parts = openfold.version(self.versions[0]).parts
        return _extrapolated(
            lambda depth: openfold.OpenFold(replace(self._sizes, num_blocks=depth), parts), depth=self._sizes.num_blocks
        )

    def data_sha256(self) -> str | None:
        return None


def _extrapolated(build: Callable[[int], nn.Module], depth: int) -> int:
    """Return the number of parameters of a model of equal layers, from models of one and two layers without memory."""
    with torch.device("meta"):
        one, two = (sum(parameter.numel() for parameter in build(layers).parameters()) for layers in (1, 2))
    return one + (depth - 1) * (two - one)
