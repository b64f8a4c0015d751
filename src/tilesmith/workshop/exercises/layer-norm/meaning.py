"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


# eps has an unusual value, so that a kernel with a number in its place is wrong.
def make_inputs(case, dtype, device, layout):
    scale = 3e-3 if case.name == "tiny-values" else 1.0 if case.mean else 40.0  # eps counts only among tiny values
    x = scale * torch.randn(case.rows, case.columns, dtype=dtype, device=device) + case.mean
    weight = torch.rand(case.columns, dtype=dtype, device=device) + 0.5
    bias = torch.randn(case.columns, dtype=dtype, device=device)
    if case.name == "strided-weight":
        weight, bias = (torch.stack([one, -one], dim=1)[:, 0] for one in (weight, bias))
    return {"x": layout(x), "weight": weight, "bias": bias, "eps": 2e-5}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=2 * (elements + case.columns) * dtype.itemsize, flops=8 * elements))
