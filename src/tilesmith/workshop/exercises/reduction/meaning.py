"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x):
    return x.sum().reshape(1)


def make_inputs(case, dtype, device):
    return {"x": torch.rand(case.elements, dtype=dtype, device=device)}


def cost(case, dtype):
    return Cost(Work(bytes=(case.elements + 1) * dtype.itemsize, flops=case.elements))
