"""Half-precision sums as a GPU computes them: in float32, rounded once.

PyTorch's CPU kernels accumulate some of them in half precision, and multiply half matrices slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tilesmith.toolchain.benchmarks import single_product

_HALF = (torch.float16, torch.bfloat16)
_MULTIPLIED = (*_HALF, torch.float32, torch.float64)  # on the host
_PRODUCTS = frozenset({"matmul", "__matmul__", "mm", "bmm"})
_SUMMING = frozenset(
    {
        *("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addbmm", "addmv"),
        *("linear", "bilinear", "einsum", "inner", "outer", "tensordot", "chain_matmul", "vdot", "cdist"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize", "norm", "vector_norm"),
        *("softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "sum", "mean", "var", "std", "var_mean", "prod"),
        *("cross_entropy", "nll_loss", "kl_div", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits"),
        *("scaled_dot_product_attention", "avg_pool2d", "adaptive_avg_pool2d", "avg_pool1d"),
    }
)


def sums_in_half(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a torch call adds up half-precision numbers, and its result can be rounded afterwards."""
    if name not in _SUMMING or options.get("out") is not None or options.get("dtype") is not None:
        return False
    return any(_is_half(leaf) for leaf in tree_leaves((arguments, options)))


def in_single(function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Call a torch function on float32 copies, and return its results in the dtype of the half operands."""
    dtype = next(leaf.dtype for leaf in tree_leaves((arguments, options)) if _is_half(leaf))
    wide = tree_map(lambda leaf: leaf.float() if _is_half(leaf) else leaf, (tuple(arguments), dict(options)))
    result = function(*wide[0], **wide[1])
    return tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 else leaf, result
    )


def product_shape(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the shape of a plain matrix product without gradients; None for any other call."""
    if name not in _PRODUCTS or len(arguments) != 2 or not options.keys() <= {"out"}:
        return None
    operands = [*arguments, *options.values()]
    if not all(type(one) is torch.Tensor and one.dim() > 1 for one in operands):
        return None
    if torch.is_grad_enabled() and any(one.requires_grad for one in operands):
        return None
    if torch.is_autocast_enabled("cuda") or torch._C._len_torch_dispatch_stack():  # others see or change the call
        return None
    left, right = arguments
    shape = (*left.shape[:-1], right.shape[-1])
    fits = left.shape[:-2] == right.shape[:-2] and left.shape[-1] == right.shape[-2]
    same = all((one.dtype, tuple(one.shape)) == (left.dtype, shape) for one in options.values())
    return shape if fits and same and left.dtype == right.dtype and left.dtype in _MULTIPLIED else None


def write_product(output: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Write a matrix product; of half-precision operands summed in float32."""
    is_single = left.dtype != torch.float64
    output.copy_(single_product(left.float(), right.float()) if is_single else torch.matmul(left, right))


def _is_half(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype in _HALF
