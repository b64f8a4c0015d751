"""Inductor: pointwise and reduction kernels of torch.compile."""

import torch


@torch.compile
def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight)


torch.manual_seed(0)
x, weight = torch.randn(33, 300, device="cuda"), torch.randn(300, device="cuda")
y = normed(x, weight)
expected = torch.nn.functional.gelu(torch.nn.functional.rms_norm(x.cpu(), (300,), weight.cpu(), 1e-6))
torch.testing.assert_close(y.cpu(), expected, atol=1e-4, rtol=1e-4)
