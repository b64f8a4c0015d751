"""lightllm: add in place."""

import torch
from _bare import bare

bare("lightllm", "lightllm.common", "lightllm.common.basemodel", "lightllm.common.basemodel.triton_kernel")
from lightllm.common.basemodel.triton_kernel.add_in_place import add_in_place

torch.manual_seed(0)
x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
expected = x.cpu() + 2 * y.cpu()
add_in_place(x, y, alpha=2)
torch.testing.assert_close(x.cpu(), expected)
