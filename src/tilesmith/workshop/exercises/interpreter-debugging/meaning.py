"""The reference in plain PyTorch, and the inputs for the check."""

import torch


def reference(x):
    wide = torch.cat([x[:1], x, x[-1:]])
    return (wide[:-2] + 2 * x + wide[2:]) / 4


def make_inputs(case, dtype, device):
    return {"x": torch.randn(case.length, dtype=dtype, device=device)}
