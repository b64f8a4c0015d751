"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(logits, target):
    return torch.nn.functional.cross_entropy(logits, target, reduction="none")


def make_inputs(case, dtype, device):
    logits = torch.randn(case.rows, case.columns, dtype=dtype, device=device) * case.spread
    if case.name == "far-below-zero":
        logits = logits - 20000
    return {"logits": logits, "target": torch.randint(0, case.columns, (case.rows,), device=device)}


def cost(case, dtype):
    elements = case.rows * case.columns
    return Cost(Work(bytes=(elements + case.rows) * dtype.itemsize + 8 * case.rows, flops=4 * elements))
