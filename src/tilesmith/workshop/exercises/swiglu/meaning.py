"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, gate_weight, up_weight):
    return torch.nn.functional.silu(x @ gate_weight) * (x @ up_weight)


def make_inputs(case, dtype, device):
    scale = case.inner**-0.5
    x = torch.randn(case.rows, case.inner, dtype=dtype, device=device)
    weights = [torch.randn(case.inner, case.columns, dtype=dtype, device=device) * scale for _ in range(2)]
    if case.head:  # one large term, then many small ones of the same sign
        x, weights = x.abs(), [weight.abs() * 0.16 for weight in weights]
        for tensor in (x.t(), *weights):
            tensor[0] = case.head
    return {"x": x, "gate_weight": weights[0], "up_weight": weights[1]}


def cost(case, dtype):
    moved = case.rows * case.inner + 2 * case.inner * case.columns + case.rows * case.columns
    return Cost(Work(bytes=moved * dtype.itemsize, flops=4 * case.rows * case.inner * case.columns))
