"""The one way to declare an operator: what users call, who computes it, and its gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function
from torch.nn import Parameter

from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.kernels import MOST_PLANS, Kernels, is_transformed, look, must_be_dispatched

Way = Callable[[Sequence[Any]], Any]
Save = Callable[[Any, tuple[Any, ...], Any], None]
Gradient = Callable[..., Any]
Prepare = Callable[..., tuple[Any, ...]]

# Tensors whose memory our kernels may read, and PyTorch's stand-ins for them. What other classes of tensor mean is
# known to PyTorch's own operators alone.
_UNDERSTOOD = (Tensor, Parameter, FakeTensor)
_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


class Operator:
    """A public operator. Calling it checks the arguments, chooses who computes, and records the gradient."""

    def __init__(
        self,
        name: str,
        check: Callable[..., Any],
        *,
        reference: Callable[..., Any],
        native: Callable[..., Any],
        forward: Kernels,
        save: Save,
        gradient: Gradient,
        prepare: Prepare | None = None,
        takes: Callable[..., bool] | None = None,
        switches: Callable[[], Hashable] | None = None,
        check_values: Callable[..., None] | None = None,
        sizes: Callable[..., Sequence[object]] | None = None,
        autocasts: bool = False,
    ) -> None:
        self.name = name
        self.reference = reference
        self.native = native
        self.forward = forward
        self._checking = check
        self._prepare = prepare
        self._takes = takes
        self._switches = switches
        self._check_values = check_values
        self._sizes = sizes
        self._autocasts = autocasts
        self._ways: dict[Hashable, Way] = {}
        gradient = _once(name, gradient)
        self._function = _autograd_function(name, save, gradient)
        # PyTorch passes these by name, and calls the first of them ctx.
        torch.library.register_autograd(
            f"tilesmith::{forward.name}", gradient, setup_context=lambda ctx, inputs, output: save(ctx, inputs, output)
        )
        self.__name__ = self.__qualname__ = name
        self.__doc__ = check.__doc__
        self.__module__ = check.__module__
        self.__signature__ = inspect.signature(check)
        parameters = self.__signature__.parameters
        self._defaults = {name: parameter.default for name, parameter in parameters.items()}
        self._positional = sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters.values())
        # A call of so many arguments needs no binding; none does where some may only be given by name.
        self._complete = len(parameters) if self._positional == len(parameters) else -1
        self._tails = _tails(list(self._defaults.values()), self._positional)

    def __repr__(self) -> str:
        return f"<operator {self.name}{self.__signature__}>"

    def __reduce__(self) -> str:
        """Copies and pickles are the operator itself, found again by its name."""
        return self.name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if named or len(arguments) != self._complete:
            arguments = self._bound(arguments, named)
        if self._autocasts:
            arguments = autocasted(arguments)
        if self._check_values is not None and dispatch.state().debug and not torch.compiler.is_compiling():
            self._check(arguments)
            self._check_values(*arguments)
        if must_be_dispatched():
            return self._route(arguments)(*arguments)
        key = look(arguments)
        if key is not None and self._switches is not None:
            key = key, self._switches()
        way = self._ways.get(key)
        if way is None:
            way = self._way(arguments)
            if key is not None:
                if len(self._ways) >= MOST_PLANS:
                    self._ways.clear()
                self._ways[key] = way
        return way(arguments)

    def _bound(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in order, with defaults filled in."""
        if not named and len(arguments) in self._tails:
            return arguments + self._tails[len(arguments)]
        rest = {name: named.get(name, default) for name, default in list(self._defaults.items())[len(arguments) :]}
        missing = any(value is inspect.Parameter.empty for value in rest.values())
        if missing or named.keys() - rest.keys() or len(arguments) > self._positional:
            try:
                self.__signature__.bind(*arguments, **named)
            except TypeError as error:
                raise TypeError(f"{self.name}: {error}; it is {self.name}{self.__signature__}") from None
        return (*arguments, *rest.values())

    def _way(self, arguments: Sequence[Any]) -> Way:
        """How calls that look like this one are computed, as cheaply as can be."""
        if self._route(arguments) is self.native:
            return lambda arguments: self.native(*arguments)
        prepare = self._prepare
        compute = self.forward.way(prepare(*arguments) if prepare else arguments)
        if torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in arguments):
            if prepare:
                return lambda arguments: self._function.apply(*prepare(*arguments), compute)
            return lambda arguments: self._function.apply(*arguments, compute)
        return (lambda arguments: compute(prepare(*arguments))) if prepare else compute

    def _route(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        """Check the arguments; say who computes a call that looks like this."""
        self._check(arguments)
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        if only_pytorch_understands(tensors):
            return self.native
        if not dispatch.kernels_can_run(tensors[0]):
            return self.native
        if self._takes is not None and not self._takes(*self._prepared(arguments)):
            return self.native
        if not torch.compiler.is_compiling() and dispatch.state().mode == "auto" and self._torch_wins(arguments):
            return self.native
        return self.forward if self._prepare is None else self._prepare_and_run

    def _check(self, arguments: Sequence[Any]) -> None:
        named = dict(zip(list(self._defaults)[self._positional :], arguments[self._positional :], strict=True))
        self._checking(*arguments[: self._positional], **named)

    def _prepared(self, arguments: Sequence[Any]) -> Sequence[Any]:
        return arguments if self._prepare is None else self._prepare(*arguments)

    def _prepare_and_run(self, *arguments: Any) -> Any:
        return self.forward(*self._prepared(arguments))

    def _torch_wins(self, arguments: Sequence[Any]) -> bool:
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        if tensors[0].device.type != "cuda":
            return False
        training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return tuning.prefers_torch(tensors[0].device, self.name, self.bucket_of(arguments), training=training)

    def bucket_for(self, **arguments: Any) -> str:
        """The bucket of a call with these arguments by name, and defaults for the others."""
        return self.bucket_of(self._bound((), arguments))

    def bucket_of(self, arguments: Sequence[Any]) -> str:
        """What decides whether PyTorch is faster: calls of one bucket go the same way. All arguments, in order."""
        return tuning.bucket_of(arguments if self._sizes is None else self._sizes(*self._prepared(arguments)))


def only_pytorch_understands(tensors: Sequence[Tensor]) -> bool:
    """Whether these must be left to PyTorch's own operators, whose gradients and transformations PyTorch knows."""
    return is_transformed() or any(type(tensor) not in _UNDERSTOOD for tensor in tensors)


def autocasted(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Under torch.autocast, what it does for matrix products: floating-point tensors in its dtype.

    Where the first of them is float8 or double, the call has settled its own precision, and nothing is cast.
    """
    first = next((value for value in arguments if isinstance(value, Tensor)), None)
    if first is None or first.dtype not in _AUTOCAST or first.device.type == "meta":
        return arguments
    if not torch.is_autocast_enabled(first.device.type):
        return arguments
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(
        value.to(dtype) if isinstance(value, Tensor) and value.dtype in _AUTOCAST else value for value in arguments
    )


def _tails(defaults: Sequence[Any], positional: int) -> dict[int, tuple[Any, ...]]:
    """What completes a call of so many arguments, for every number that leaves out only those with a default."""
    required = sum(value is inspect.Parameter.empty for value in defaults)
    return {given: tuple(defaults[given:]) for given in range(required, positional + 1)}


def _once(name: str, gradient: Gradient) -> Gradient:
    """The gradient, which refuses to be differentiated itself.

    PyTorch's own once_differentiable cuts the gradient off from the arguments, so that torch.autograd.grad of a loss
    with a gradient in it would silently leave that part out.
    """

    def backward(context: Any, *output_gradients: Tensor) -> Any:
        if not torch.is_grad_enabled():
            return gradient(context, *output_gradients)
        with torch.no_grad():
            found = gradient(context, *output_gradients)
        gradients = found if isinstance(found, tuple) else (found,)
        present = [one for one in gradients if one is not None]
        depends_on = [one for one in (*output_gradients, *context.saved_tensors) if one is not None]
        kept = iter(_Refusing.apply(name, len(present), *present, *depends_on))
        return tuple(None if one is None else next(kept) for one in gradients)

    return backward


class _Refusing(Function):
    """Hands on the first of its tensors, and cannot be differentiated with respect to any."""

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


def _autograd_function(name: str, save: Save, gradient: Gradient) -> type[Function]:
    """The operator as PyTorch differentiates it in eager mode, without the detour through the dispatcher.

    Applied to the operator's arguments, and last the way to compute them.
    """

    def forward(context: Any, *arguments_and_way: Any) -> Any:
        arguments, compute = arguments_and_way[:-1], arguments_and_way[-1]
        output = compute(arguments)
        save(context, arguments, output)
        return output

    def backward(context: Any, *output_gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradients = gradient(context, *output_gradients)
        return (*gradients, None) if isinstance(gradients, tuple) else (gradients, None)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (Function,), members)


def operator(
    name: str,
    *,
    reference: Callable[..., Any],
    forward: Kernels,
    save: Save,
    gradient: Gradient,
    native: Callable[..., Any] | None = None,
    prepare: Prepare | None = None,
    takes: Callable[..., bool] | None = None,
    switches: Callable[[], Hashable] | None = None,
    check_values: Callable[..., None] | None = None,
    sizes: Callable[..., Sequence[object]] | None = None,
    autocasts: bool = False,
) -> Callable[[Callable[..., Any]], Operator]:
    """Declare a public operator.

    Decorates the function whose signature and docstring users see and whose body checks the arguments, raising a
    ValueError or TypeError that names the wrong one.

    - `reference`: the meaning, in plain PyTorch.
    - `native`: the fastest PyTorch has for it, if that is not the reference.
    - `forward`: the kernels, taking the operator's own arguments, or what `prepare` makes of them.
    - `save(context, inputs, output)` and `gradient(context, *output_gradients)`: as torch.library.register_autograd
      has them for `forward`.
    - `takes`: of the kernels' arguments, whether the kernels can compute such a call. If not, `native` does.
    - `switches`: the settings outside the arguments, such as PyTorch's own for tf32, that decide how a call runs.
    - `check_values`: raises a ValueError for values that make no sense; called where `debug` is on, and may wait for
      the GPU.
    - `sizes`: of the kernels' arguments, what decides whether PyTorch is faster. By default that is told by the sizes
      of all matrices and all arguments that are whole numbers or strings.
    - `autocasts`: torch.autocast applies, as it does to matrix products.
    """
    return lambda check: Operator(
        name,
        check,
        reference=reference,
        native=native or reference,
        forward=forward,
        save=save,
        gradient=gradient,
        prepare=prepare,
        takes=takes,
        switches=switches,
        check_values=check_values,
        sizes=sizes,
        autocasts=autocasts,
    )
