"""PyTorch's modes as they usually are, for the trials of `patch` and `fold`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tilesmith.ops.runtime.dispatch import use


@contextmanager
def in_usual_modes() -> Iterator[None]:
    """Try on the CPU, in single precision, with gradients and by PyTorch's operators, whatever the caller has set.

    Trials compare formulas, not the rounding of our kernels or of autocast. They draw none of the caller's random
    numbers.
    """
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"),
            torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=()), use("torch"),
        ):  # fmt: skip
            yield
    finally:
        torch.set_default_dtype(dtype)
