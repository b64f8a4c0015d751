"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x):
    return torch.cumsum(x, dim=0)


def make_inputs(case, dtype, device):
    return {"x": torch.rand(case.elements, dtype=dtype, device=device)}


def cost(case, dtype):
    return Cost(Work(bytes=2 * case.elements * dtype.itemsize, flops=case.elements))
