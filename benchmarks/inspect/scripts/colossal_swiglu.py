"""ColossalAI: SwiGLU of a gate with twice the width, forward and backward."""

import torch
from _bare import bare

bare("colossalai", "colossalai.kernel", "colossalai.kernel.triton")
from colossalai.kernel.triton.llama_act_combine_kernel import LlamaActCombine

torch.manual_seed(0)
gate = torch.randn(9, 200, device="cuda", requires_grad=True)
up = torch.randn(9, 100, device="cuda", requires_grad=True)
y = LlamaActCombine.apply(gate, up)
y.backward(torch.ones_like(y))
print(gate.grad.sum(), up.grad.sum())
