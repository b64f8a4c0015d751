"""accelerated-scan: a first-order recurrence, forward and backward."""

import torch
from accelerated_scan.scalar import scan

torch.manual_seed(0)
forget = torch.rand(2, 3, 100, device="cuda", requires_grad=True)
inputs = torch.randn(2, 3, 100, device="cuda", requires_grad=True)
states = scan(forget, inputs)
state, expected = torch.zeros(2, 3, device="cuda"), []
for step in range(100):
    state = forget[..., step] * state + inputs[..., step]
    expected.append(state)
torch.testing.assert_close(states, torch.stack(expected, -1), atol=1e-4, rtol=1e-4)
states.square().sum().backward()
print(forget.grad.sum().item(), inputs.grad.sum().item())
