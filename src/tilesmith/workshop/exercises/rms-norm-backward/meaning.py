"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(gradient, x, weight, eps):
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        y = leaf * torch.rsqrt(leaf.pow(2).mean(dim=-1, keepdim=True) + eps) * weight
        return torch.autograd.grad(y, leaf, gradient)[0]


# eps has an unusual value, so that a kernel with a number in its place is wrong.
def make_inputs(case, dtype, device, layout):
    gradient, x = (torch.randn(case.rows, case.columns, dtype=dtype, device=device) for _ in range(2))
    if case.name == "tiny-values":
        x = 1e-3 * x
    weight = torch.rand(case.columns, dtype=dtype, device=device) + 0.5
    if case.name == "strided-weight":
        weight = torch.stack([weight, -weight], dim=1)[:, 0]
    return {"gradient": layout(gradient), "x": layout(x), "weight": weight, "eps": 5e-7}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=(3 * elements + case.columns) * dtype.itemsize, flops=9 * elements))
