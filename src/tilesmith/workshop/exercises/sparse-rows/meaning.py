"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(starts, columns, values, x):
    lengths = (starts[1:] - starts[:-1]).long()
    rows = torch.repeat_interleave(torch.arange(lengths.numel(), device=x.device), lengths)
    products = values * x[columns.long()]
    return torch.zeros(lengths.numel(), dtype=x.dtype, device=x.device).index_add(0, rows, products)


def make_inputs(case, dtype, device):
    # Row 0 is empty and the last row is the longest.
    rows = torch.arange(case.rows)
    lengths = rows * case.longest // max(case.rows - 1, 1) if case.rows > 1 else torch.tensor([case.longest])
    starts = torch.zeros(case.rows + 1, dtype=torch.int32)
    starts[1:] = torch.cumsum(lengths, dim=0)
    columns = [torch.randperm(case.width)[: int(length)].sort().values for length in lengths]
    return {
        "starts": starts.to(device),
        "columns": torch.cat(columns).to(torch.int32).to(device),
        "values": torch.randn(int(starts[-1]), dtype=dtype, device=device),
        "x": torch.randn(case.width, dtype=dtype, device=device),
    }


def cost(case, dtype):
    elements = case.rows * case.longest // 2
    moved = 4 * (case.rows + 1 + elements) + dtype.itemsize * (elements + case.width + case.rows)
    return Cost(Work(bytes=moved, flops=2 * elements))
