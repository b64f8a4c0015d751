"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(a, b):
    return a @ b


def make_inputs(case, dtype, device):
    a = torch.randn(case.rows, case.inner, dtype=dtype, device=device)
    b = torch.randn(case.inner, case.columns, dtype=dtype, device=device) * case.inner**-0.5
    if case.name == "long-sum":  # the first term is large, and the others are small and positive
        a, b = a.abs() / 4, b.abs() + 0.05
        a[:, 0], b[0] = 64, 32
    return {"a": a, "b": b}


def cost(case, dtype):
    moved = case.rows * case.inner + case.inner * case.columns + case.rows * case.columns
    return Cost(Work(bytes=moved * dtype.itemsize, flops=2 * case.rows * case.inner * case.columns))
