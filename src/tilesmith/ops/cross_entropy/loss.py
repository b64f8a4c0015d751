"""What the losses share: the checks of their arguments, and outputs of the kernels that the user does not see."""

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.runtime.arguments import dtype_name, require_number
from tilesmith.ops.runtime.autograd import outputs_are_private
from tilesmith.ops.runtime.kernels import must_be_dispatched

REDUCTIONS = ("mean", "sum", "none")


def may_overwrite_kept(context: Any) -> bool:
    """Whether this backward may overwrite its saved tensors: no other code sees them, no later backward needs them."""
    if not outputs_are_private(context) or must_be_dispatched():
        return False
    return not torch._C._autograd._get_current_graph_task_keep_graph()


def require_target(operator: str, target: Tensor, wanted: torch.Size, of: str) -> None:
    """Raise an error unless the target has an int64 class for every row."""
    if not isinstance(target, Tensor):
        raise TypeError(f"{operator}: target is a {type(target).__name__}, but must be a tensor")
    if target.dtype != torch.int64:
        raise TypeError(f"{operator}: target has dtype {dtype_name(target)}, but must hold classes as int64")
    if target.shape != wanted:
        raise ValueError(
            f"{operator}: target has shape {tuple(target.shape)}, "
            f"but {of} has {tuple(wanted)} before its last dimension"
        )


def require_loss_options(operator: str, ignore_index: int, label_smoothing: float, reduction: str) -> None:
    """Raise an error that names the first option that is wrong."""
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, torch.SymInt)):
        raise TypeError(f"{operator}: ignore_index is a {type(ignore_index).__name__}, but must be an integer")
    require_number(operator, "label_smoothing", label_smoothing, at_least=0.0)
    if label_smoothing > 1:
        raise ValueError(f"{operator}: label_smoothing is {label_smoothing}, but must be at most 1")
    if reduction not in REDUCTIONS:
        raise ValueError(f"{operator}: reduction is {reduction!r}, but must be one of {', '.join(REDUCTIONS)}")


def require_classes(operator: str, target: Tensor, n_classes: int, ignore_index: int) -> None:
    """Raise an error unless every target is a class or ignored. Waits for the GPU."""
    wrong = (target != ignore_index) & ((target < 0) | (target >= n_classes))
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{operator}: target is {target[tuple(place)].item()} at {place}, "
            f"but must be a class from 0 to {n_classes - 1}, or ignore_index, which is {ignore_index}"
        )
