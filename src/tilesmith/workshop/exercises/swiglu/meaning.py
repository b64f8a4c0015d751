"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, gate_weight, up_weight):
    return torch.nn.functional.silu(x @ gate_weight) * (x @ up_weight)


def make_inputs(case, dtype, device):
    scale = case.inner**-0.5
    return {
        "x": torch.randn(case.rows, case.inner, dtype=dtype, device=device),
        "gate_weight": torch.randn(case.inner, case.columns, dtype=dtype, device=device) * scale,
        "up_weight": torch.randn(case.inner, case.columns, dtype=dtype, device=device) * scale,
    }


def cost(case, dtype):
    moved = case.rows * case.inner + 2 * case.inner * case.columns + case.rows * case.columns
    return Cost(Work(bytes=moved * dtype.itemsize, flops=4 * case.rows * case.inner * case.columns))
