"""SGLang: softcap of logits."""

import torch
from _bare import bare

bare("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.activation")
from sglang.kernels.ops.activation.softcap import softcap_inplace_logits, softcap_out

torch.manual_seed(0)
x = torch.randn(5, 777, device="cuda") * 40
expected = torch.tanh(x.cpu() / 30) * 30
torch.testing.assert_close(softcap_out(x, 30.0).cpu(), expected, atol=1e-3, rtol=1e-3)
softcap_inplace_logits(x, 30.0)
torch.testing.assert_close(x.cpu(), expected, atol=1e-3, rtol=1e-3)
