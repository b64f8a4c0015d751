"""DeepSeek-V3: fp8 quantisation of activations, and weights back from fp8."""

import torch
from kernel import act_quant, weight_dequant

torch.manual_seed(0)
x = torch.randn(7, 384, device="cuda")
y, scales = act_quant(x)
restored = y.float().view(7, 3, 128) * scales.view(7, 3, 1)
torch.testing.assert_close(restored.view(7, 384), x, atol=0.1, rtol=0.1)
w, scales = torch.randn(200, 300, device="cuda").to(torch.float8_e4m3fn), torch.rand(2, 3, device="cuda")
expected = w.float() * scales.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
torch.testing.assert_close(weight_dequant(w, scales), expected)
