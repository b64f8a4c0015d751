"""lightllm: copy keys and values to their slots."""

import torch
from _bare import bare

bare("lightllm", "lightllm.common", "lightllm.common.basemodel", "lightllm.common.basemodel.triton_kernel")
from lightllm.common.basemodel.triton_kernel.destindex_copy_kv import destindex_copy_kv, destindex_copy_quantize_kv

torch.manual_seed(0)
keys = torch.randn(9, 6, 64, device="cuda", dtype=torch.float16)
slots = torch.randperm(40, device="cuda")[:9].to(torch.int32)
cache = torch.zeros(40, 6, 64, device="cuda", dtype=torch.float16)
destindex_copy_kv(keys, slots, cache)
assert torch.equal(cache.cpu()[slots.cpu().long()], keys.cpu())
small = torch.zeros(40, 6, 64, device="cuda", dtype=torch.int8)
scales = torch.zeros(40, 6, 1, device="cuda", dtype=torch.float16)
destindex_copy_quantize_kv(keys, slots, small, scales)
print(scales.sum())
