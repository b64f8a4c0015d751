"""Conch: activations, norms, int8 quantisation."""

import torch
from conch.ops.activation.gelu_tanh_and_mul import gelu_tanh_and_mul
from conch.ops.activation.silu_and_mul import silu_and_mul
from conch.ops.normalization.gemma_rms_norm import gemma_rms_norm
from conch.ops.normalization.rms_norm import fused_add_rms_norm, rms_norm
from conch.ops.quantization.int8 import scaled_int8_quant

torch.manual_seed(0)
x = torch.randn(7, 600, device="cuda")
left, right = x[:, :300], x[:, 300:]
torch.testing.assert_close(silu_and_mul(x), torch.nn.functional.silu(left) * right, atol=1e-5, rtol=1e-5)
gelu = torch.nn.functional.gelu(left, approximate="tanh")
torch.testing.assert_close(gelu_tanh_and_mul(x), gelu * right, atol=1e-5, rtol=1e-5)
weight = torch.randn(600, device="cuda")
expected = torch.nn.functional.rms_norm(x, (600,), weight, 1e-6)
torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected, atol=1e-4, rtol=1e-4)
print(gemma_rms_norm(x.clone(), weight, 1e-6).sum().item())
y, residual = fused_add_rms_norm(x.clone(), torch.randn(7, 600, device="cuda"), weight, 1e-6)
print(y.sum().item(), residual.sum().item())
print(scaled_int8_quant(x, torch.full((1,), 0.02, device="cuda"))[0].sum().item())
