"""vLLM: merge attention states."""

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

from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

torch.manual_seed(0)
prefix, suffix = (torch.randn(11, 4, 48, device="cuda") for _ in range(2))
prefix_lse, suffix_lse = (torch.randn(4, 11, device="cuda") for _ in range(2))
output = torch.empty(11, 4, 48, device="cuda")
merge_attn_states(output, prefix, prefix_lse, suffix, suffix_lse)
weight = torch.sigmoid(prefix_lse.cpu() - suffix_lse.cpu()).T[..., None]
torch.testing.assert_close(output.cpu(), weight * prefix.cpu() + (1 - weight) * suffix.cpu(), atol=1e-4, rtol=1e-4)
