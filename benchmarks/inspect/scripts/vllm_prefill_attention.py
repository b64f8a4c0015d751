"""vLLM: prefill attention of sequences with lengths."""

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

bare("vllm.utils")
from vllm.v1.attention.ops.triton_prefill_attention import context_attention_fwd

torch.manual_seed(0)
lengths = torch.tensor([20, 45], dtype=torch.int32, device="cuda")
starts = torch.tensor([0, 20], dtype=torch.int32, device="cuda")
q = torch.randn(65, 2, 64, device="cuda", dtype=torch.float16)
k, v = (torch.randn(65, 1, 64, device="cuda", dtype=torch.float16) for _ in range(2))
o = torch.empty_like(q)
context_attention_fwd(q, k, v, o, starts, lengths, 45)
first = torch.nn.functional.scaled_dot_product_attention(
    *(one.cpu().float()[:20].transpose(0, 1) for one in (q, k, v)), is_causal=True, enable_gqa=True
)
torch.testing.assert_close(o.cpu().float()[:20].transpose(0, 1), first, atol=2e-2, rtol=2e-2)
