"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, scale, shift):
    return x * scale[:, None] + shift[None, :]


def make_inputs(case, dtype, device, layout):
    x = torch.randn(case.rows, case.columns, dtype=dtype, device=device)
    scale = torch.randn(case.rows, dtype=dtype, device=device)
    shift = torch.randn(case.columns, dtype=dtype, device=device)
    return {"x": layout(x), "scale": scale, "shift": shift}


def cost(case, dtype):
    elements = case.rows * case.columns
    moved = 2 * elements + case.rows + case.columns
    return Cost(Work(bytes=moved * dtype.itemsize, flops=2 * elements))
