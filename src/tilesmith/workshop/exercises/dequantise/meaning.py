"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work

GROUP = 32


def reference(q, scale, zero):
    columns = q.shape[1]
    scale, zero = (one.repeat_interleave(GROUP, dim=1)[:, :columns] for one in (scale, zero))
    return ((q.to(scale.dtype) - zero.to(scale.dtype)) * scale).to(torch.float16)


def make_inputs(case, dtype, device):
    groups = -(-case.columns // GROUP)
    low, high = -case.largest - 1, case.largest + 1
    q = torch.randint(low, high, (case.rows, case.columns), dtype=torch.int8, device=device)
    zero = torch.randint(low, high, (case.rows, groups), dtype=torch.int8, device=device)
    q[0, 0], zero[0, 0] = case.largest, low  # the widest difference
    scale = (0.01 + 0.01 * torch.rand(case.rows, groups, dtype=dtype, device=device)) / case.divisor
    return {"q": q, "scale": scale, "zero": zero}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=3 * elements + (dtype.itemsize + 1) * elements // GROUP, flops=2 * elements))
