"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def make_inputs(case, dtype, device):
    x = torch.randn(case.rows, case.columns, dtype=dtype, device=device) + case.mean
    weight = torch.rand(case.columns, dtype=dtype, device=device) + 0.5
    return {"x": x, "weight": weight, "bias": torch.randn(case.columns, dtype=dtype, device=device), "eps": 1e-5}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=2 * (elements + case.columns) * dtype.itemsize, flops=8 * elements))
