"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def make_inputs(case, dtype, device, layout):
    x = torch.randn(case.rows, case.columns, dtype=dtype, device=device) + case.mean
    weight = torch.rand(case.columns, dtype=dtype, device=device) + 0.5
    bias = torch.randn(case.columns, dtype=dtype, device=device)
    if case.name == "strided-weight":
        weight, bias = (torch.stack([one, -one], dim=1)[:, 0] for one in (weight, bias))
    return {"x": layout(x), "weight": weight, "bias": bias, "eps": 1e-5}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=2 * (elements + case.columns) * dtype.itemsize, flops=8 * elements))
