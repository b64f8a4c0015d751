import _deepspeed  # noqa: F401  # before deepspeed
import torch
from deepspeed.ops.transformer.inference.triton.gelu import gelu
from deepspeed.ops.transformer.inference.triton.layer_norm import layer_norm, layer_norm_residual
from deepspeed.ops.transformer.inference.triton.softmax import softmax

torch.manual_seed(0)
x, residual = (torch.randn(3, 5, 64, device="cuda", dtype=torch.float16) for _ in range(2))
bias, weight, shift = (torch.randn(64, device="cuda", dtype=torch.float16) for _ in range(3))
print(softmax(x).sum().item(), gelu(x).sum().item())
print(softmax(x, torch.zeros(15, 64, device="cuda", dtype=torch.float16)).sum().item())
print(layer_norm(x, weight, shift, 1e-5).sum().item())
print(layer_norm_residual(x, bias, residual, weight, shift, 1e-5).sum().item())
