"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work

GROUP = 32


def reference(x, q, scale):
    scales = scale.repeat_interleave(GROUP, dim=0)[: q.shape[0]]
    # Each group's product is scaled: the weights are never rounded to half precision.
    groups = [
        (x[:, start : start + GROUP] @ q[start : start + GROUP].to(x.dtype)) * scales[start].to(x.dtype)
        for start in range(0, q.shape[0], GROUP)
    ]
    return torch.stack(groups).sum(dim=0)


def make_inputs(case, dtype, device):
    groups = -(-case.inner // GROUP)
    q = torch.randint(-127, 128, (case.inner, case.columns), dtype=torch.int8, device=device)
    scale = (0.2 + torch.rand(groups, case.columns, device=device)) * case.inner**-0.5 / 64
    x = torch.randn(case.rows, case.inner, dtype=dtype, device=device)
    if case.name == "large-partial-sums":  # three groups add up to 121,920, and two take 81,280 away
        x, q, scale = torch.full_like(x, 40), torch.full_like(q, 127), torch.full_like(scale, 0.25)
        q[96:] = -127
    return {"x": x, "q": q, "scale": scale.to(dtype)}


def cost(case, dtype):
    weights = case.inner * case.columns
    moved = (case.rows * (case.inner + case.columns) + weights // GROUP) * dtype.itemsize + weights
    return Cost(Work(bytes=moved, flops=2 * case.rows * weights))
