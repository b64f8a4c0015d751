"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x):
    return torch.nn.functional.silu(x)


def make_inputs(case, dtype, device):
    return {"x": torch.randn(case.elements, dtype=dtype, device=device) * case.spread}


def cost(case, dtype):
    return Cost(Work(bytes=2 * case.elements * dtype.itemsize, flops=5 * case.elements))
