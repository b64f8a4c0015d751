"""lmdeploy: quantise each token to int8, then a GEMM."""

import torch
from _bare import bare

bare("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels", "lmdeploy.pytorch.kernels.cuda")
from lmdeploy.pytorch.kernels.cuda.w8a8_triton_kernels import (
    matmul_kernel_dynamic_quant,
    per_token_quant_int8,
)

torch.manual_seed(0)
x, w = torch.randn(9, 160, device="cuda").half(), torch.randn(96, 160, device="cuda").half()
(x_rounded, x_scale), (w_rounded, w_scale) = per_token_quant_int8(x, 1e-7), per_token_quant_int8(w, 1e-7)
y = matmul_kernel_dynamic_quant(x_rounded, w_rounded, x_scale, w_scale)
torch.testing.assert_close(y.float(), x.float() @ w.float().T, atol=0.6, rtol=0.1)
