"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, bias):
    return x + bias[:, None]


def make_inputs(case, dtype, device, layout):
    x = torch.randn(case.batch, case.rows, case.columns, dtype=dtype, device=device)
    return {"x": layout(x), "bias": torch.randn(case.rows, dtype=dtype, device=device)}


def cost(case, dtype):
    elements = case.batch * case.rows * case.columns
    return Cost(Work(bytes=(2 * elements + case.rows) * dtype.itemsize, flops=elements))
