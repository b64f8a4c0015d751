# the launch
import json
from pathlib import Path

import torch
import triton

from .kernels import softmax_kernel

OPTIONS = json.loads((Path(__file__).parent / "options.json").read_text())


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](
        x, y, x.shape[1], num_warps=OPTIONS["warps"], BLOCK=triton.next_power_of_2(x.shape[1])
    )
    return y
