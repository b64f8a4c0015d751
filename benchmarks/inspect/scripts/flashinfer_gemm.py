"""FlashInfer: GEMM on a limited number of multiprocessors."""

import torch
from _bare import bare

bare("flashinfer", "flashinfer.triton")
bare("flashinfer.utils", get_compute_capability=torch.cuda.get_device_capability, GPUArchitectureError=RuntimeError)
from flashinfer.triton.sm_constraint_gemm import gemm, gemm_descriptor_persistent, gemm_persistent

torch.manual_seed(0)
a, b = (torch.randn(200, 160, device="cuda").half() for _ in range(2))
gemm(a, b.T)  # without c, the kernel multiplies what it finds in fresh memory by beta = 0
for operator, right in ((gemm, b.T), (gemm_persistent, b.T), (gemm_descriptor_persistent, b)):
    c = torch.zeros(200, 200, device="cuda", dtype=torch.float16)
    torch.testing.assert_close(operator(a, right, c), a @ b.T, atol=5e-1, rtol=2e-2)
