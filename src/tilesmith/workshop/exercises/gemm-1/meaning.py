"""The reference in plain PyTorch, and the inputs for the check."""

import torch

TILE, GROUP = 16, 2


def reference(a, b):
    return a @ b, torch.tensor(_order(-(-a.shape[0] // TILE), -(-b.shape[1] // TILE)), dtype=torch.int32)


def _order(tiles_down, tiles_across):
    """Return the tiles group by group; within a group, column by column."""
    groups = [range(first, min(first + GROUP, tiles_down)) for first in range(0, tiles_down, GROUP)]
    return [(down, across) for group in groups for across in range(tiles_across) for down in group]


def make_inputs(case, dtype, device):
    a = torch.randn(case.rows, case.inner, dtype=dtype, device=device)
    b = torch.randn(case.inner, case.columns, dtype=dtype, device=device) * case.inner**-0.5
    if case.name == "long-sum":  # the first term is large, and the others are small and positive
        a, b = a.abs() / 4, b.abs() + 0.05
        a[:, 0], b[0] = 64, 32
    return {"a": a, "b": b}
