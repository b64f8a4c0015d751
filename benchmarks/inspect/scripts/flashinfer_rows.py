"""FlashInfer: RMS norm, SiLU and multiply, merged attention states."""

import torch
from _bare import bare

bare("flashinfer", "flashinfer.triton")
bare("flashinfer.utils", get_compute_capability=torch.cuda.get_device_capability, GPUArchitectureError=RuntimeError)
from flashinfer.triton.cascade import merge_state, merge_states
from flashinfer.triton.norm import rms_norm, rms_norm_add_residual

torch.manual_seed(0)
x, weight = torch.randn(5, 300, device="cuda"), torch.randn(300, device="cuda")
out = torch.empty_like(x)
rms_norm(x, weight, out, 1e-6)
torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (300,), weight, 1e-6), atol=1e-4, rtol=1e-4)
rms_norm_add_residual(x, torch.randn_like(x), weight, 1e-6, x_out=out)
v, s = torch.randn(2, 7, 4, 64, device="cuda"), torch.randn(2, 7, 4, device="cuda")
merged, _ = merge_state(v[0], s[0], v[1], s[1])
several, _ = merge_states(v.transpose(0, 1).contiguous(), s.transpose(0, 1).contiguous())
torch.testing.assert_close(merged, several, atol=1e-4, rtol=1e-4)
