"""Conch: copies inside a paged cache, whose layers a table of addresses names, and rotary embedding."""

import torch
from conch.ops.embedding.rotary_embedding import rotary_embedding
from conch.ops.vllm.copy_blocks import copy_blocks

torch.manual_seed(0)
keys, values = ([torch.randn(6, 320, device="cuda") for _ in range(3)] for _ in range(2))
copy_blocks(keys, values, torch.tensor([[0, 3], [1, 4]], device="cuda"))
torch.testing.assert_close(keys[2][4], keys[2][1])
torch.testing.assert_close(values[1][3], values[1][0])
query, key = torch.randn(9, 6 * 32, device="cuda"), torch.randn(9, 2 * 32, device="cuda")
angles = torch.outer(torch.arange(16.0), 10000 ** (-torch.arange(16.0) / 16))
cache = torch.cat([angles.cos(), angles.sin()], -1).cuda()
rotated, _ = rotary_embedding(torch.arange(9, device="cuda"), query.clone(), key, 32, cache)
torch.testing.assert_close(rotated.norm(), query.norm())
