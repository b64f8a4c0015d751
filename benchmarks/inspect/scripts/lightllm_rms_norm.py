"""lightllm: RMS norm."""

import torch
from _bare import bare

bare("lightllm", "lightllm.models", "lightllm.models.llama", "lightllm.models.llama.triton_kernel")
from lightllm.models.llama.triton_kernel.rmsnorm import rmsnorm_forward, torch_rms_norm

torch.manual_seed(0)
x = torch.randn(15, 512, device="cuda", dtype=torch.float16)
weight = torch.randn(512, device="cuda", dtype=torch.float16)
y = rmsnorm_forward(x, weight, 1e-5)
torch.testing.assert_close(y.cpu(), torch_rms_norm(x.cpu(), weight.cpu(), 1e-5), atol=1e-2, rtol=1e-2)
