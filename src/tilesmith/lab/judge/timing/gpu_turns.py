"""One clock at a time on a GPU, also where several judges run in several processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_on_gpu() -> Iterator[None]:
    """Wait until no other judge of this user times anything on the visible GPUs."""
    import fcntl  # not on Windows, which has no judge

    name = f"tilesmith-gpu-{os.getuid()}-{os.environ.get('CUDA_VISIBLE_DEVICES', 'all').replace('/', '-')[:80]}.lock"
    descriptor = os.open(Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # frees the lock
