"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, weight, eps):
    wide = x.double() if x.dtype == torch.float64 else x.float()
    inverse_rms = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse_rms * weight).to(x.dtype)


# eps has an unusual value, so that a kernel with a number in its place is wrong.
def make_inputs(case, dtype, device, layout):
    scale = 1e-3 if case.name == "tiny-values" else 40.0
    x = scale * torch.randn(case.rows, case.columns, dtype=dtype, device=device)
    weight = torch.rand(case.columns, dtype=dtype, device=device) + 0.5
    if case.name == "strided-weight":
        weight = torch.stack([weight, -weight], dim=1)[:, 0]
    return {"x": layout(x), "weight": weight, "eps": 2e-6}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=2 * elements * dtype.itemsize, flops=4 * elements))
