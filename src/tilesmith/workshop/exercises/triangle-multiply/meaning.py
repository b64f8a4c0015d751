"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(a, b, mask):
    return (a * mask) @ (b * mask).mT


def make_inputs(case, dtype, device):
    shape = (case.channels, case.length, case.length)
    a, b = (torch.randn(shape, dtype=dtype, device=device) * case.length**-0.25 for _ in range(2))
    mask = (torch.rand(case.length, case.length, device=device) > 0.25).to(dtype)
    if case.name == "large-partial-sums":  # two thirds of the sum are 78,400, and the last third takes 56,000 away
        a, b, mask = torch.full_like(a, 35), torch.full_like(b, 35), torch.ones_like(mask)
        b[:, :, 64:] = -50
    return {"a": a, "b": b, "mask": mask}


def cost(case, dtype):
    moved = (3 * case.channels + 1) * case.length**2
    return Cost(Work(bytes=moved * dtype.itemsize, flops=2 * case.channels * case.length**3))
