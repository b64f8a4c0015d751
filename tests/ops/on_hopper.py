"""What tests of kernels that only Hopper has share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilesmith.toolchain import launcher


def only_on_hopper() -> None:
    """Skips the test on other GPUs."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU")


def names_launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the name of every kernel is added when it is launched."""
    names: list[str] = []
    monkeypatch.setattr(launcher, "listeners", [lambda launch: names.append(launch.kernel.__name__)])
    return names


def attention_leaves(sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """q, k, v and a gradient, as projections leave them: heads are no neighbours of themselves in memory.

    Sizes are batch, heads, key heads, queries, keys and the size of a head.
    """
    batch, heads, key_heads, queries, keys, head = sizes
    torch.manual_seed(0)
    shapes = [(queries, heads), (keys, key_heads), (keys, key_heads), (queries, heads)]
    *leaves, doutput = (
        torch.randn(batch, rows, of, head, device="cuda", dtype=dtype).transpose(1, 2) for rows, of in shapes
    )
    return [leaf.requires_grad_() for leaf in leaves], doutput
