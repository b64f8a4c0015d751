"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(x, window, stride, padding):
    return torch.nn.functional.max_pool2d(x, window, stride, padding)


def make_inputs(case, dtype, device):
    x = torch.randn(case.planes, case.height, case.width, dtype=dtype, device=device) + case.shift
    return {"x": x, "window": case.window, "stride": case.stride, "padding": case.padding}


def cost(case, dtype):
    places = [(side + 2 * case.padding - case.window) // case.stride + 1 for side in (case.height, case.width)]
    outputs = case.planes * places[0] * places[1]
    moved = case.planes * case.height * case.width + outputs
    return Cost(Work(bytes=moved * dtype.itemsize, flops=outputs * case.window**2))
