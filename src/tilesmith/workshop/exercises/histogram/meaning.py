"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(values, bins):
    return torch.bincount(values, minlength=bins).to(torch.int32)


def make_inputs(case, dtype, device):
    # Every bin occurs: the check wants each element of the result from a kernel.
    values = torch.randint(0, case.bins, (case.elements,), dtype=torch.int32, device=device)
    values[: case.bins] = torch.arange(case.bins)
    return {"values": values, "bins": case.bins}


def cost(case, dtype):
    return Cost(Work(bytes=4 * (case.elements + case.bins), flops=case.elements))
