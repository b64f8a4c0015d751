"""ColossalAI: copy keys and values of one step into a cache of blocks."""

import torch
from _bare import bare

bare("colossalai", "colossalai.kernel", "colossalai.kernel.triton")
from colossalai.kernel.triton.kvcache_copy import copy_kv_to_blocked_cache

torch.manual_seed(0)
k, v = (torch.randn(3, 4, 64, device="cuda") for _ in range(2))
caches = [torch.zeros(12, 4, 16, 64, device="cuda") for _ in range(2)]
lengths = torch.tensor([5, 17, 33], dtype=torch.int32, device="cuda")
tables = torch.arange(12, dtype=torch.int32, device="cuda").view(3, 4)
copy_kv_to_blocked_cache(k, v, *caches, lengths, tables)
torch.testing.assert_close(caches[0][5, :, 0], k[1])
torch.testing.assert_close(caches[1][10, :, 0], v[2])
