"""SageAttention: int8 quantisation of queries and keys by block and by thread."""

import torch
from _bare import bare

bare("sageattention", "sageattention.triton")
from sageattention.triton.quant_per_block import per_block_int8
from sageattention.triton.quant_per_thread import per_thread_int8

torch.manual_seed(0)
q, k = torch.randn(1, 4, 200, 64, device="cuda").half(), torch.randn(1, 2, 200, 64, device="cuda").half()
rounded, scale, _, _ = per_block_int8(q, k, sm_scale=1 / 1.44269504)
restored = rounded[:, :, :128].float() * scale[:, :, :1, None]
torch.testing.assert_close(restored, q[:, :, :128].float(), atol=0.05, rtol=0.0)
print(per_thread_int8(q, k)[1].sum())
