"""Commands of `tilesmith`, one after another in this process: torchrun starts it once for all, which takes seconds.

torchrun several_commands.py '[["auto", ["train", "llama", …]], …]', where each says who computes.
"""

import json
import sys

import torch.distributed as dist

import tilesmith as ts
from tilesmith.cli import app

dist.init_process_group("gloo")
for mode, arguments in json.loads(sys.argv[1]):
    with ts.use(mode):
        app(arguments, standalone_mode=False)
dist.destroy_process_group()
