"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, y):
    return x + y


def make_inputs(case, dtype, device):
    return {name: torch.randn(case.elements, dtype=dtype, device=device) for name in ("x", "y")}


def cost(case, dtype):
    elements = case.elements
    return Cost(Work(bytes=3 * elements * dtype.itemsize, flops=elements))
