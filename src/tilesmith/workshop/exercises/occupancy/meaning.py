"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + eps) * weight


def make_inputs(case, dtype, device):
    x = torch.randn(case.rows, case.columns, dtype=dtype, device=device) * 0.05
    return {"x": x, "weight": torch.rand(case.columns, dtype=dtype, device=device) + 0.5, "eps": 1e-3}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=(2 * elements + case.columns) * dtype.itemsize, flops=4 * elements))
