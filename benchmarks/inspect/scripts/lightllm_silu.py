"""lightllm: SiLU and product."""

import torch
from _bare import bare

bare("lightllm", "lightllm.models", "lightllm.models.llama", "lightllm.models.llama.triton_kernel")
from lightllm.models.llama.triton_kernel.silu_and_mul import silu_and_mul_fwd

torch.manual_seed(0)
x = torch.randn(30, 256, device="cuda", dtype=torch.float16)
y = torch.empty(30, 128, device="cuda", dtype=torch.float16)
silu_and_mul_fwd(x, y)
gate, up = x.cpu().float().chunk(2, dim=1)
torch.testing.assert_close(y.cpu().float(), torch.nn.functional.silu(gate) * up, atol=1e-2, rtol=1e-2)
