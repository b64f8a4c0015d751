"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, factor):
    return x * factor


def make_inputs(case, dtype, device):
    factor = 0.75 if case.name == "ragged" else 1.5  # a kernel with a number in its place is wrong
    return {"x": torch.randn(case.rows, case.columns, dtype=dtype, device=device), "factor": factor}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=2 * elements * dtype.itemsize, flops=elements))
