"""ColossalAI: RMS norm, also with a residual."""

import torch
from _bare import bare

bare("colossalai", "colossalai.kernel", "colossalai.kernel.triton")
from colossalai.kernel.triton.rms_layernorm import rms_layernorm

torch.manual_seed(0)
x, residual = torch.randn(9, 320, device="cuda").half(), torch.randn(9, 320, device="cuda").half()
weight = torch.randn(320, device="cuda").half()
expected = torch.nn.functional.rms_norm(x.float(), (320,), weight.float(), 1e-6)
torch.testing.assert_close(rms_layernorm(x, weight, 1e-6)[0].float(), expected, atol=0.01, rtol=0.01)
print(rms_layernorm(x, weight, 1e-6, residual=residual)[0].sum())
