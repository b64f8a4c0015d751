"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x):
    return x.mT.clone(memory_format=torch.contiguous_format)


def make_inputs(case, dtype, device):
    return {"x": torch.randn(case.rows, case.columns, dtype=dtype, device=device)}


def cost(case, dtype):
    return Cost(Work(bytes=2 * case.rows * case.columns * dtype.itemsize, flops=0))
