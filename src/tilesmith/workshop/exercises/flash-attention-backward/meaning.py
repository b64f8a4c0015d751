"""The reference in plain PyTorch, and the inputs for the check."""

import torch


def reference(q, k, v, out, log_total, out_gradient):
    scale = q.shape[-1] ** -0.5
    weights = torch.exp(q @ k.mT * scale - log_total[..., None]).to(q.dtype)
    delta = (out_gradient * out).sum(dim=-1, keepdim=True)
    score_gradient = weights * (out_gradient @ v.mT - delta)
    return score_gradient @ k * scale, score_gradient.mT @ q * scale, weights.mT @ out_gradient


def make_inputs(case, dtype, device):
    q, k, v, out_gradient = (
        torch.randn(case.heads, case.length, case.width, dtype=dtype, device=device) for _ in range(4)
    )
    if case.name == "large-partial-sums":  # all queries attend to key 0, whose gradient rises to 84,000 and falls again
        q[..., 0], k[:, 0, 0] = 8, 16
        out_gradient[:] = 300
        out_gradient[:, 280:] = -300
    scores = q.float() @ k.float().mT * case.width**-0.5
    out = (torch.softmax(scores, dim=-1) @ v.float()).to(dtype)
    log_total = torch.logsumexp(scores, dim=-1)
    return {"q": q, "k": k, "v": v, "out": out, "log_total": log_total, "out_gradient": out_gradient}
