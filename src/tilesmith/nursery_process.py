"""Start the process of the judge's nursery, also before this process has imported PyTorch: both then import at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

_NO_CUDA_YET = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # a process that has initialised CUDA cannot fork a GPU's user
_CODE = """import sys
sys.path[:] = [one for one in sys.path if one]
from tilesmith.lab.judge.isolation.nursery import main
main()
"""


@dataclass(frozen=True)
class Started:
    """A nursery and the socket on which it takes requests. It ends when the socket is closed."""

    process: subprocess.Popen[bytes]
    requests: socket.socket


_ahead: list[Started] = []


def start_ahead() -> None:
    """Start a nursery for the next `started`."""
    if not _ahead:
        _ahead.append(_start())


def started() -> Started:
    """Return the nursery that was started ahead, else a new one."""
    return _ahead.pop() if _ahead else _start()


def _start() -> Started:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join(one for one in sys.path if one)  # a child must not import from the user's folder
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0", **_NO_CUDA_YET},
        start_new_session=True,
    )
    theirs.close()
    return Started(process, ours)
