"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def make_inputs(case, dtype, device, layout):
    position = torch.arange(case.rows, device=device)[:, None] + 1
    angle = position / 10000.0 ** (torch.arange(case.half, device=device) / case.half)
    if case.name == "odd":
        angle = torch.randn(angle.shape, device=device)
    x = torch.randn(case.rows, 2 * case.half, dtype=dtype, device=device)
    return {"x": layout(x), "cosine": angle.cos().to(dtype), "sine": angle.sin().to(dtype)}


def cost(case, dtype):
    return Cost(Work(bytes=6 * case.rows * case.half * dtype.itemsize, flops=6 * case.rows * case.half))
