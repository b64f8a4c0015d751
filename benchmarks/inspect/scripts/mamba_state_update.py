"""Mamba: selective state update."""

import torch
from _bare import bare

bare("mamba_ssm", "mamba_ssm.ops")
from mamba_ssm.ops.triton.selective_state_update import selective_state_update, selective_state_update_ref

torch.manual_seed(0)
state = torch.randn(3, 70, 16, device="cuda")
x, dt, z = (torch.randn(3, 70, device="cuda") for _ in range(3))
A = -torch.rand(70, 16, device="cuda")
B, C = (torch.randn(3, 16, device="cuda") for _ in range(2))
D, bias = torch.randn(70, device="cuda"), torch.randn(70, device="cuda")
other = state.clone()
y = selective_state_update(state, x, dt, A, B, C, D=D, z=z, dt_bias=bias, dt_softplus=True)
expected = selective_state_update_ref(other, x, dt, A, B, C, D=D, z=z, dt_bias=bias, dt_softplus=True)
torch.testing.assert_close(y.cpu(), expected.cpu(), atol=1e-4, rtol=1e-4)
torch.testing.assert_close(state.cpu(), other.cpu(), atol=1e-4, rtol=1e-4)
