"""Run several commands of `tilesmith` in one process, because starting torchrun takes seconds.

Usage: torchrun several_commands.py '[["auto", ["train", "llama", …]], …]'; each entry is a mode of `ts.use` and a
command.
"""

import json
import sys

import tilesmith as ts
from tilesmith.cli import app
from tilesmith.training.running.distributed import joined

with joined():
    for mode, arguments in json.loads(sys.argv[1]):
        with ts.use(mode):
            app(arguments, standalone_mode=False)
