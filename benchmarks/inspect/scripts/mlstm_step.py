"""mLSTM kernels: one recurrent step, beside the library's own definition."""

import torch
from mlstm_kernels.torch.recurrent.native_step import mlstm_recurrent_step__native
from mlstm_kernels.torch.recurrent.triton_step import mlstm_recurrent_step__triton

torch.manual_seed(0)
q, k, v = (torch.randn(2, 3, 32, device="cuda") for _ in range(3))
i, f = (torch.randn(2, 3, 1, device="cuda") for _ in range(2))
c, n, m = torch.randn(2, 3, 32, 32, device="cuda"), torch.rand(2, 3, 32, device="cuda"), torch.zeros(2, 3, 1).cuda()
h, _ = mlstm_recurrent_step__triton(q=q, k=k, v=v, i=i, f=f, c=c, n=n, m=m)
expected, _ = mlstm_recurrent_step__native(q=q, k=k, v=v, i=i, f=f, c=c, n=n, m=m)
print((h - expected).abs().max().item())  # Triton 3.9 has no block pointers: no result to compare
