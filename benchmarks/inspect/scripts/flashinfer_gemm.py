"""FlashInfer: GEMM on a limited number of multiprocessors."""

import torch
from _bare import bare

bare("flashinfer", "flashinfer.triton")
bare("flashinfer.utils", get_compute_capability=torch.cuda.get_device_capability, GPUArchitectureError=RuntimeError)
from flashinfer.triton.sm_constraint_gemm import gemm, gemm_descriptor_persistent, gemm_persistent

torch.manual_seed(0)
a, b = (torch.randn(200, 160, device="cuda").half() for _ in range(2))
for operator in (gemm, gemm_persistent):
    torch.testing.assert_close(operator(a, b.T), a @ b.T, atol=5e-1, rtol=2e-2)
torch.testing.assert_close(gemm_descriptor_persistent(a, b), a @ b.T, atol=5e-1, rtol=2e-2)
