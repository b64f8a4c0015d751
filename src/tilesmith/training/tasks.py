"""What can be trained: a model, data it can learn from, and the best loss that the data allows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from tilesmith.models import llama, openfold
from tilesmith.models.versions import Version
from tilesmith.training.chains import Chains
from tilesmith.training.steps import Batch
from tilesmith.training.tokens import MarkovChain, TextBytes


class Task(Protocol):
    """A model and its data. A batch is what the model is called with for a loss; without its last tensor, the target,
    the model gives what it predicts."""

    name: str
    versions: tuple[str, ...]
    rectified: bool
    """Whether the model rectifies: its gradients jump where an input of the rectifier crosses zero."""
    best_loss: float | None
    tokens_per_sample: int
    config: dict[str, Any]
    """Sizes and data, as plain data: what a checkpoint must agree on."""
    defaults: dict[str, Any]
    """Settings that are not the usual ones where the user asks for none."""

    def version(self, name: str) -> Version[Any]: ...

    def model(self, version: Version[Any]) -> nn.Module:
        """The model with its initial parameters, the same for every version."""
        ...

    def batches(self, steps: range, batch_size: int) -> Batch:
        """The data of these steps, on the CPU, with steps as a dimension in front."""
        ...


class LlamaTask:
    """Tiny LLaMA on a token source of known entropy, or on the bytes of a file."""

    name = "llama"
    versions: tuple[str, ...] = llama.VERSION_NAMES
    rectified = False

    def __init__(self, sizes: dict[str, Any], data: Path | None = None, seed: int = 0) -> None:
        """`sizes` are fields of the model's Config; those left out have its defaults, the vocabulary that of the data.

        Raises ValueError for sizes that do not go together, DataError for a file that cannot be used.
        """
        self._source = MarkovChain(llama.Config.vocab_size, seed) if data is None else TextBytes(data, seed)
        self._sizes = llama.Config(**{**sizes, "vocab_size": self._source.vocab_size})
        self._seed = seed
        self.best_loss = self._source.best_loss
        self.tokens_per_sample = self._sizes.seq_len
        self.described = self._source.described
        self.config = {**asdict(self._sizes), "data": str(data) if data else None, "seed": seed}
        self.defaults: dict[str, Any] = {}
        self.batches(range(1), 1)  # a file too short for a sequence shows here

    def version(self, name: str) -> Version[llama.Parts]:
        return llama.version(name)

    def model(self, version: Version[llama.Parts]) -> nn.Module:
        return llama.Llama(self._sizes, version.parts, seed=self._seed)

    def batches(self, steps: range, batch_size: int) -> Batch:
        """Tokens, and the tokens that follow them."""
        sequences = torch.from_numpy(self._source.sequences(steps, batch_size, self._sizes.seq_len + 1))
        return sequences[..., :-1].contiguous(), sequences[..., 1:].contiguous()


class OpenFoldTask:
    """Tiny OpenFold on chains whose shape follows from their alignment."""

    name = "openfold"
    versions: tuple[str, ...] = openfold.VERSION_NAMES
    rectified = True

    def __init__(self, sizes: dict[str, Any], seed: int = 0) -> None:
        """`sizes` are fields of the model's Config. Raises ValueError for those that do not go together."""
        self._sizes = config = openfold.Config(**sizes)
        self._chains = Chains(config.num_residues, config.num_sequences, config.residue_types, config.num_bins, seed)
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
        """Alignments, and bins of the distances between residues."""
        alignments, bins = self._chains.batches(steps, batch_size)
        return torch.from_numpy(alignments), torch.from_numpy(bins)
