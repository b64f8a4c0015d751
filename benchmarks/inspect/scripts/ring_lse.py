"""ring-flash-attention: the log-sum-exp of sequences of different lengths, flat and padded."""

import torch
from _bare import bare

bare("ring_flash_attn")
from ring_flash_attn.triton_utils import flatten_varlen_lse, unflatten_varlen_lse

torch.manual_seed(0)
starts = torch.tensor([0, 5, 12], dtype=torch.int32, device="cuda")
lse = torch.randn(2, 3, 7, device="cuda")
flat = flatten_varlen_lse(lse, starts)
padded = unflatten_varlen_lse(flat.transpose(-2, -1).contiguous(), starts, 7)
torch.testing.assert_close(padded[0, :, :5], lse[0, :, :5])
torch.testing.assert_close(padded[1], lse[1])
