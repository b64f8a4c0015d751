"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(scores, dim=-1) @ v


def make_inputs(case, dtype, device):
    shape = (case.heads, case.length, case.width)
    return {name: torch.randn(shape, dtype=dtype, device=device) for name in "qkv"}


def cost(case, dtype):
    moved = 4 * case.heads * case.length * case.width
    pairs = case.heads * case.length * case.length
    return Cost(Work(bytes=moved * dtype.itemsize, flops=4 * pairs * case.width))
