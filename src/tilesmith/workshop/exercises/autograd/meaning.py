"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x):
    return torch.relu(x).square().t()


def make_inputs(case, dtype, device):
    return {"x": torch.randn(case.rows, case.columns, dtype=dtype, device=device)}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=2 * elements * dtype.itemsize, flops=2 * elements))
