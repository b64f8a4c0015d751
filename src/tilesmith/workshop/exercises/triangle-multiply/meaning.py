"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(a, b, mask):
    return (a * mask) @ (b * mask).mT


def make_inputs(case, dtype, device):
    shape = (case.channels, case.length, case.length)
    a, b = (torch.randn(shape, dtype=dtype, device=device) * case.length**-0.25 for _ in range(2))
    mask = (torch.rand(case.length, case.length, device=device) > 0.25).to(dtype)
    return {"a": a, "b": b, "mask": mask}


def cost(case, dtype):
    moved = (3 * case.channels + 1) * case.length**2
    return Cost(Work(bytes=moved * dtype.itemsize, flops=2 * case.channels * case.length**3))
