"""vLLM: AWQ dequantisation and GEMM."""

from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from _bare import bare

platform = SimpleNamespace(
    is_rocm=lambda: False, is_xpu=lambda: False, is_cuda_alike=lambda: True,
    fp8_dtype=lambda: torch.float8_e4m3fn, has_device_capability=lambda *version: True,
)  # fmt: skip
bare("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.ops")
bare("vllm.triton_utils", triton=triton, tl=tl)
bare("vllm.platforms", current_platform=platform)

bare("vllm.model_executor", "vllm.model_executor.layers", "vllm.model_executor.layers.quantization")
from vllm.model_executor.layers.quantization.awq_triton import awq_dequantize_triton, awq_gemm_triton

torch.manual_seed(0)
weight = torch.randint(-(2**31), 2**31 - 1, (128, 16), dtype=torch.int32, device="cuda")
zeros = torch.randint(-(2**31), 2**31 - 1, (2, 16), dtype=torch.int32, device="cuda")
scales = torch.rand(2, 128, dtype=torch.float16, device="cuda") / 16
full = awq_dequantize_triton(weight, scales, zeros)
x = torch.randn(7, 128, dtype=torch.float16, device="cuda")
y = awq_gemm_triton(x, weight, scales, zeros, split_k_iters=2)
torch.testing.assert_close(y.cpu().float(), x.cpu().float() @ full.cpu().float(), atol=0.1, rtol=2e-2)
