"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, weight, padding):
    return torch.nn.functional.conv2d(x[None], weight, padding=padding)[0]


def make_inputs(case, dtype, device):
    x = torch.randn(case.channels, case.height, case.width, dtype=dtype, device=device)
    shape = (case.outputs, case.channels, case.window, case.window)
    weight = torch.randn(shape, dtype=dtype, device=device) * (case.channels * case.window**2) ** -0.5
    if case.name == "long-sum":  # the first term is large, and the others are small and positive
        x, weight = x.abs() / 4, weight.abs() + 0.05
        x[0], weight[:, 0] = 64, 32
    return {"x": x, "weight": weight, "padding": case.padding}


def cost(case, dtype):
    places = (case.height + 2 * case.padding - case.window + 1) * (case.width + 2 * case.padding - case.window + 1)
    weights = case.outputs * case.channels * case.window**2
    moved = case.channels * case.height * case.width + weights + case.outputs * places
    return Cost(Work(bytes=moved * dtype.itemsize, flops=2 * weights * places))
