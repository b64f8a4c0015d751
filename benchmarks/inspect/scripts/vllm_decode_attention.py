"""vLLM: decode attention over pages."""

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

from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

torch.manual_seed(0)
batch, heads, kv_heads, width, splits, page = 2, 4, 2, 64, 4, 1
q = torch.randn(batch, heads, width, device="cuda")
k, v = (torch.randn(40, page, kv_heads, width, device="cuda") for _ in range(2))
lengths = torch.tensor([13, 20], dtype=torch.int32, device="cuda")
tokens = torch.arange(40, dtype=torch.int32, device="cuda").view(2, 20)
o = torch.zeros(batch, heads, width, device="cuda")
lse = torch.zeros(batch, heads, device="cuda")
logits = torch.empty(batch, heads, splits, width + 1, device="cuda")
decode_attention_fwd(q, k, v, o, lse, tokens, lengths, logits, splits, width**-0.5, page)
print(o.sum())
