"""How tensor cores take single precision: as PyTorch was told."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tilesmith.ops.runtime.plan import Plan


def _constant_to_tracers(function: Callable[[], bool]) -> Callable[[], bool]:
    """torch.compile need not look inside: it guards PyTorch's own switches itself.

    All that `torch.compiler.assume_constant_result` does, but that imports the whole of torch.compile: 1.8 s of the 5 s
    that `import tilesmith.ops` took.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take any attribute
    return function


@_constant_to_tracers
def tf32_allowed() -> bool:
    """Whether PyTorch was told that products of single precision may leave out the last bits of their operands."""
    return _precision_for("matmul") == "tf32"


@_constant_to_tracers
def tf32_allowed_in_convolutions() -> bool:
    """The same for convolutions, which have a switch of their own, and it is on unless turned off."""
    return _precision_for("conv") == "tf32"


def _precision_for(products: str) -> str:
    # What torch.backends.cuda.matmul.fp32_precision and its like come to, in a quarter of the time: this runs at every
    # call. The older switches refuse to be read where the newer have been set.
    return str(torch._C._get_fp32_precision_getter("cuda", products))


def product_precision(plan: Plan, dtype: torch.dtype, tf32: bool) -> str:
    """What `tl.dot` is told: only the first bits of single precision, or all of them as sums of shorter numbers."""
    if dtype != torch.float32 or plan.device.type == "cpu":
        return "ieee"  # the interpreter is exact, whatever it is told
    if plan.architecture.target.startswith("hip"):
        return "ieee"  # in matrix units too
    return "tf32" if tf32 else "bf16x6"


def must_be_exact(x: Tensor) -> bool:
    """Whether products of x are of single precision, and neither tf32 nor autocast will do."""
    if x.dtype != torch.float32 or tf32_allowed():
        return False
    return x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type)
