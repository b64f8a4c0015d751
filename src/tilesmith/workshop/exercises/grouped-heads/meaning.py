"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(q, k):
    k = k.repeat_interleave(q.shape[0] // k.shape[1], dim=1).transpose(0, 1)
    return (k @ q[:, :, None]).squeeze(2)


def make_inputs(case, dtype, device):
    k = torch.randn(case.keys, case.key_heads, case.width, dtype=dtype, device=device)
    return {"q": torch.randn(case.heads, case.width, dtype=dtype, device=device), "k": k}


def cost(case, dtype):
    moved = case.heads * case.width + case.key_heads * case.keys * case.width + case.heads * case.keys
    return Cost(Work(bytes=moved * dtype.itemsize, flops=2 * case.heads * case.keys * case.width))
