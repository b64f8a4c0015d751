import torch
import torch.nn as nn


class Model(nn.Module):
    """Two linear layers and a rectifier."""

    def __init__(self, features, hidden):
        super().__init__()
        self.first = nn.Linear(features, hidden, bias=False)
        self.second = nn.Linear(hidden, features, bias=False)

    def forward(self, x):
        return torch.relu(self.second(self.first(x)))


batch_size = 64
features = 32
hidden = 128


def get_inputs():
    return [torch.rand(batch_size, features)]


def get_init_inputs():
    return [features, hidden]
