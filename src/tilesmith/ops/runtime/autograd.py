"""The gradient of an operator, as PyTorch's autograd calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.options import Gradient, Save


def with_state(save: Save) -> Save:
    """Return `save` such that it keeps the state of dispatch too, for the backward."""

    def save_all(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # PyTorch passes these by name
        ctx.dispatch = dispatch.current()
        save(ctx, inputs, output)

    return save_all


def once_differentiable(name: str, gradient: Gradient) -> Gradient:
    """Return the gradient such that differentiating it again raises an error.

    torch.autograd.function.once_differentiable detaches the gradient from the arguments instead: torch.autograd.grad of
    a loss that contains a gradient would silently leave that part out.
    """

    def backward(context: Any, *output_gradients: Tensor) -> Any:
        state = getattr(context, "dispatch", None)
        if state is not None and state is not dispatch.current():  # this may be a thread of PyTorch's own
            with dispatch.entered(state):
                return backward(context, *output_gradients)
        if not torch.is_grad_enabled():
            return gradient(context, *output_gradients)
        with torch.no_grad():
            found = gradient(context, *output_gradients)
        gradients = found if isinstance(found, tuple) else (found,)
        present = [one for one in gradients if one is not None]
        depends_on = [one for one in (*output_gradients, *context.saved_tensors) if one is not None]
        kept = iter(_RefuseGradient.apply(name, len(present), *present, *depends_on))
        return tuple(None if one is None else next(kept) for one in gradients)

    return backward


class _RefuseGradient(Function):
    """Returns the first `count` of its tensors; its backward raises an error."""

    @staticmethod
    def forward(context: Any, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        context.name = name
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(context: Any, *output_gradients: Tensor) -> Any:
        raise RuntimeError(
            f"{context.name}: cannot be differentiated twice by its kernels; "
            'call it inside `with tilesmith.use("torch"):` where that is needed'
        )


def autograd_function(name: str, save: Save, gradient: Gradient, *, private_outputs: bool) -> type[Function]:
    """Return the torch.autograd.Function that eager calls use; it skips PyTorch's dispatcher.

    It is applied to the kernels' arguments and, last, the function that computes them. With `private_outputs` it
    returns the first output only, and the context says so to the backward.
    """

    careful = once_differentiable(name, gradient)

    # Few Python calls: each takes 0.1 to 0.3 µs.
    def forward(context: Any, *arguments_and_compute: Any) -> Any:
        arguments = arguments_and_compute[:-1]
        output = arguments_and_compute[-1](arguments)
        context.dispatch = dispatch.current()
        if private_outputs:
            context.outputs_are_private = True
            save(context, arguments, output)
            return output[0]
        save(context, arguments, output)
        return output

    def backward(context: Any, *output_gradients: Tensor) -> tuple[Tensor | None, ...]:
        is_simple = context.dispatch is dispatch.current() and not torch.is_grad_enabled()
        gradients = (gradient if is_simple else careful)(context, *output_gradients)
        return (*gradients, None) if isinstance(gradients, tuple) else (gradients, None)

    return type(name, (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def save_for_backward(context: Any, arguments: Sequence[Tensor | None], kept: Sequence[Tensor]) -> None:
    """Save arguments and kept outputs. Kept outputs have no incoming gradient, and PyTorch allocates none."""
    if not outputs_are_private(context):
        context.mark_non_differentiable(*kept)
    context.set_materialize_grads(False)
    context.save_for_backward(*arguments, *kept)


def outputs_are_private(context: Any) -> bool:
    """Whether autograd sees the first output only. Where PyTorch's dispatcher calls the kernels, it sees all."""
    return getattr(context, "outputs_are_private", False)


def apply_plain(function: type[Function]) -> Callable[..., Any]:
    """Return `function.apply` for arguments that are plain tensors, outside of torch.func transforms.

    It skips the Python method of PyTorch's class, which looks for other arguments.
    """
    apply: Callable[..., Any] = super(Function, function).apply  # type: ignore[misc]  # a method of the C++ class
    return apply
