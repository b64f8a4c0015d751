import torch
import torch.nn as nn


class Model(nn.Module):
    """Adds a bias of the rows' shape, and takes the positive part."""

    def __init__(self, bias_shape: tuple):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.bias)


batch_size = 4096
input_shape = (16384,)
planes = 2
bias_shape = (planes, 1)
full_shape = (batch_size, planes)


def get_inputs():
    return [torch.rand(*full_shape, *input_shape)]


def get_init_inputs():
    return [bias_shape]
