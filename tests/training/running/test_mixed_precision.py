"""Mixed precision: rounded parameters, float32 gradients."""

from __future__ import annotations

import torch
from torch import nn

from tilesmith.training.running.mixed_precision import PARAMETERS_PER_LAUNCH, Rounded


def test_model_computes_in_bf16_and_gets_float32_gradients() -> None:
    torch.manual_seed(0)
    wide = nn.Linear(8, 5, bias=False)
    narrow = nn.Linear(8, 5, bias=False, dtype=torch.bfloat16)
    narrow.load_state_dict(wide.state_dict())
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    result = Rounded(wide, torch.bfloat16)(x)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, narrow(x))
    result.sum().backward()
    narrow(x).sum().backward()
    assert wide.weight.grad is not None
    assert wide.weight.grad.dtype == wide.weight.dtype == torch.float32
    assert narrow.weight.grad is not None
    assert torch.equal(wide.weight.grad, narrow.weight.grad.float())


def test_every_parameter_is_rounded_beyond_one_launch() -> None:
    layers = PARAMETERS_PER_LAUNCH + 3
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
    result = Rounded(model, torch.float64)(torch.ones(1, 2, dtype=torch.float64))
    assert result.dtype == torch.float64
    result.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert [parameter.dtype for parameter in model.parameters()] == [torch.float32] * layers
