"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, k):
    values, indices = torch.sort(x, dim=1, descending=True, stable=True)
    return values[:, :k], indices[:, :k].to(torch.int32)


def make_inputs(case, dtype, device):
    x = torch.randn(case.rows, case.columns, dtype=dtype, device=device)
    return {"x": torch.round(x * case.steps) / case.steps + case.shift, "k": case.k}


def cost(case, dtype):
    moved = case.rows * (case.columns * dtype.itemsize + case.k * (dtype.itemsize + 4))
    return Cost(Work(bytes=moved, flops=case.rows * case.columns * case.k))
