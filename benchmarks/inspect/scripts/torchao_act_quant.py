"""torchao: blockwise fp8 quantisation of activations."""

import torch
from _bare import bare

bare("torchao", "torchao.prototype", "torchao.prototype.blockwise_fp8_inference")
from torchao.prototype.blockwise_fp8_inference.kernels import fp8_blockwise_act_quant

torch.manual_seed(0)
x = torch.randn(8, 512, device="cuda", dtype=torch.bfloat16)
y, scales = fp8_blockwise_act_quant(x)
back = y.cpu().float().view(8, 4, 128) * scales.cpu().view(8, 4, 1)
torch.testing.assert_close(back.view(8, 512), x.cpu().float(), atol=0.2, rtol=0.1)
