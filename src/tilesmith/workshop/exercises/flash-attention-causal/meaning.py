"""The reference in plain PyTorch, and the inputs for the check."""

import torch

from tilesmith import Cost, Work


def reference(q, k, v):
    k = k - k.mean(dim=-2, keepdim=True)  # moves all scores of a query alike: the weights stay, no score overflows
    scores = q @ k.mT * q.shape[-1] ** -0.5
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(later, -float("inf"))
    return torch.softmax(scores, dim=-1) @ v


def make_inputs(case, dtype, device):
    shape = (case.heads, case.length, case.width)
    inputs = {name: torch.randn(shape, dtype=dtype, device=device) for name in "qkv"}
    if case.name == "large-scores":  # of one query: exp overflows unless this query's own largest score is subtracted
        inputs["q"][:, 35] *= 200
        inputs["k"][..., 0].abs_().add_(2)  # all scores of the next query are far below zero
        inputs["q"][:, 36, 0] = -300
        inputs["k"][:, 39] = inputs["q"][:, 35] / 50  # the largest score of query 35 is of a key after it
    if case.name == "scores-beyond-half":  # all scores of a query are the same and about 360,000
        inputs["q"].abs_().add_(300)
        inputs["k"][:] = inputs["k"][:, :1].abs() + 300
    if case.name == "large-partial-sums":  # equal weights: unnormalised, the values add up to 110,000
        inputs["q"] *= 0.01
        inputs["v"] = 20 * inputs["v"] + 300
    return inputs


def cost(case, dtype):
    moved = 4 * case.heads * case.length * case.width
    pairs = case.heads * case.length * (case.length + 1) // 2
    return Cost(Work(bytes=moved * dtype.itemsize, flops=4 * pairs * case.width))
