"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, weight, gradient, eps):
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        centred = leaf - leaf.mean(dim=1, keepdim=True)
        y = centred * torch.rsqrt(centred.square().mean(dim=1, keepdim=True) + eps) * weight
        return y.detach(), torch.autograd.grad(y, leaf, gradient)[0]


def make_inputs(case, dtype, device):
    x, gradient = (torch.randn(case.rows, case.columns, dtype=dtype, device=device) for _ in range(2))
    weight = torch.rand(case.columns, dtype=dtype, device=device) + 0.5
    return {"x": x + case.shift, "weight": weight, "gradient": gradient, "eps": 1e-2}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=5 * elements * dtype.itemsize + 16 * case.rows, flops=20 * elements))
