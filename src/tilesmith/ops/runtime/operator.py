"""The one way to declare an operator: what users call, who computes it, and its gradient.

A call of an `Operator`:

1. `_bound` fills in defaults. `_adjusted` completes arguments, casts under autocast and checks values under `debug`.
   An operator with alternatives (other kernels for some arguments) continues with the first that `when` selects.
2. Under torch.compile and dispatch modes, `_dispatched` calls the registered torch operator.
3. Otherwise `look` gives a key of shapes, strides, dtypes, devices and the dispatch state. `_runners` maps it to the
   function that computes such calls. `_runner_for` makes that function at the first call.
4. `_uses_torch` checks the arguments and chooses who computes. PyTorch does under torch.func transforms, for tensor
   subclasses, where the kernels cannot run or `takes` refuses, and where `auto` measured PyTorch faster. Otherwise the
   kernels compute: `forward` plans them (`kernels.py`), and an autograd function records the gradient.

No kernel is named here. A new kernel is a form of the operator's own plan (`forms.py`), or an `Alternative` in its
`Options`, where it needs other saved tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter

from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.auto.first_sight import measure_once
from tilesmith.ops.runtime.auto.sides import Direction, signature, torch_computes
from tilesmith.ops.runtime.autograd import apply_plain, autograd_function, once_differentiable, with_state
from tilesmith.ops.runtime.kernels import MOST_PLANS, Kernels, is_transformed, look, must_be_dispatched
from tilesmith.ops.runtime.kinds import Kinds
from tilesmith.ops.runtime.options import NO_OPTIONS, Alternative, Gradient, Options, Prepare, Save
from tilesmith.ops.runtime.precision import autocast_rounds, autocasted

P = ParamSpec("P")
R = TypeVar("R")

# Classes of tensors whose memory our kernels may read, and PyTorch's stand-ins for them. Only PyTorch's own operators
# know how to compute with other classes.
_KNOWN_CLASSES = frozenset({Tensor, Parameter, FakeTensor})


class Operator(Generic[P, R]):
    """A public operator. A call checks the arguments, chooses who computes, and records the gradient."""

    def __init__(
        self,
        name: str,
        check: Callable[P, R],
        *,
        reference: Callable[..., Any],
        native: Callable[..., Any],
        forward: Kernels,
        save: Save,
        gradient: Gradient,
        prepare: Prepare | None,
        options: Options,
    ) -> None:
        self.name = name
        self.reference = reference
        self.native = native
        self.forward = forward
        self.options = options
        self._checking = check
        self._prepare = prepare
        self._runners: dict[Hashable, Callable[[Sequence[Any]], R]] = {}
        self._by_torch: set[str] = set()  # signatures, where their number is bounded
        self._function = autograd_function(name, save, gradient, private_outputs=options.private_outputs)
        self._apply_plain = apply_plain(self._function)
        torch.library.register_autograd(
            f"tilesmith::{forward.name}", once_differentiable(name, gradient), setup_context=with_state(save)
        )
        self.__name__ = self.__qualname__ = name
        self.__doc__ = check.__doc__
        self.__module__ = check.__module__
        self.__signature__ = inspect.signature(check)
        self._kinds = Kinds(name, check)
        parameters = self.__signature__.parameters
        self._defaults = {name: parameter.default for name, parameter in parameters.items()}
        self._default_items = list(self._defaults.items())
        self._positional = sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters.values())
        # A positional call with this many arguments is complete. -1: never, since some parameters are keyword-only.
        self._complete = len(parameters) if self._positional == len(parameters) else -1
        self._trailing_defaults = _trailing_defaults(list(self._defaults.values()), self._positional)
        places = {name: place for place, name in enumerate(parameters)}
        self._residual_place = places["residual"] if options.residual else -1
        self._finish = [(places[name], function) for name, function in options.finish.items()]
        self._switches = options.switches
        self._alternatives: list[tuple[Callable[..., bool], Operator[P, R]]] = [
            (one.when, self._alternative(one)) for one in options.alternatives
        ]
        self._is_adjusted = bool(
            self._alternatives or options.complete or options.residual or options.autocasts or options.check_values
        )

    def _alternative(self, one: Alternative) -> Operator[P, R]:
        """Return the operator that computes by the alternative's kernels."""
        return Operator(
            self.name, self._checking, reference=self.reference, native=self.native,
            forward=one.forward, save=one.save, gradient=one.gradient, prepare=one.prepare, options=one.options,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<operator {self.name}{self.__signature__}>"

    def __reduce__(self) -> str:
        """Copies and pickles are the operator itself, found again by its name."""
        return self.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        arguments: tuple[Any, ...] = args
        if kwargs or len(args) != self._complete:
            arguments = self._bound(args, kwargs)
        chosen = self
        if self._is_adjusted:
            for when, alternative in self._alternatives:
                if when(*arguments):
                    chosen = alternative
                    break
            if chosen._residual_place >= 0 and chosen._must_add_residual(arguments):
                return self._with_residual(arguments)
            try:
                arguments = chosen._adjusted(arguments)
            except Exception:
                self._kinds.require(arguments)  # says more than the error of whatever came first
                raise
        if must_be_dispatched():
            return chosen._dispatched(arguments)
        key = look(arguments)
        if key is not None and chosen._switches is not None:
            key = key, chosen._switches()
        run = chosen._runners.get(key)
        if run is None:
            run = chosen._runner_for(arguments)
            if key is not None:
                if len(chosen._runners) >= MOST_PLANS:
                    chosen._runners.clear()
                chosen._runners[key] = run
        return run(arguments)

    def _bound(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in order, with defaults filled in."""
        if not named and len(arguments) in self._trailing_defaults:
            return arguments + self._trailing_defaults[len(arguments)]
        rest = dict(self._default_items[len(arguments) :])
        known = len(rest)
        rest.update(named)  # keeps the order; a name that is not a parameter's, or is given already, is one more
        wrong = len(rest) != known or len(arguments) > self._positional
        for value in rest.values():  # no generator, and no ==, which tensors compute
            wrong = wrong or value is inspect.Parameter.empty
        if wrong:
            try:
                self.__signature__.bind(*arguments, **named)
            except TypeError as error:
                raise TypeError(f"{self.name}: {error}; it is {self.name}{self.__signature__}") from None
        return (*arguments, *rest.values())

    def _must_add_residual(self, arguments: Sequence[Any]) -> bool:
        """Whether PyTorch has to add the residual, since the kernels do not."""
        if arguments[self._residual_place] is not True:
            return False
        return self.options.residual == "separate" or autocast_rounds(arguments[0])

    def _with_residual(self, arguments: tuple[Any, ...]) -> R:
        """Return the first argument plus the update."""
        named = dict(zip(self._defaults, arguments, strict=True)) | {"residual": False}
        call: Callable[..., Any] = self
        result: R = arguments[0] + call(**named)
        return result

    def _adjusted(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments completed and in autocast's dtype; where `debug` is on, check their values."""
        options = self.options
        if options.complete is not None:
            arguments = options.complete(*arguments)
        if options.autocasts:
            arguments = autocasted(arguments)
        if options.check_values is not None and not torch.compiler.is_compiling() and dispatch.state().debug:
            self._check(arguments)
            options.check_values(*arguments)
        return arguments

    def _dispatched(self, arguments: Sequence[Any]) -> R:
        """Call through the PyTorch dispatcher, so that torch.compile and dispatch modes see this operator."""
        if self._uses_torch(arguments):
            result: R = self.native(*arguments)
        else:
            result = self._finished(self.forward(*self._prepared(arguments)), arguments)
        return result

    def _runner_for(self, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], R]:
        """Return the function that computes calls with this look at the least cost for the host."""
        if self._uses_torch(arguments):
            return self._native_runner(arguments)
        run = self._kernels_for(arguments)
        if self.options.returns == "all":
            return run
        if self._finish:
            return lambda arguments: self._finished(run(arguments), arguments)
        return lambda arguments: _first(run(arguments))

    def _native_runner(self, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], R]:
        """Return the function that computes calls with this look by PyTorch, in the layout that the kernels return."""
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        if only_pytorch_understands(tensors) or tensors[0].is_meta:
            return lambda arguments: self.native(*arguments)
        on_meta = [_without_memory(value) for value in arguments]
        promised = self.forward.fake(*(self._prepare(*on_meta) if self._prepare else on_meta))
        if self.options.returns == "first":
            promised = _first(promised)
        strides = [one.stride() for one in (promised if isinstance(promised, tuple) else (promised,))]
        return lambda arguments: _laid_out(self.native(*arguments), strides)

    def _kernels_for(self, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        """Return the function that computes calls with this look by kernels, and records the gradient."""
        prepare = self._prepare
        trains = wants_gradient(arguments)
        if trains and self._torch_computes_forward(arguments):
            return self._with_torchs_forward
        compute = self.forward.runner_for(prepare(*arguments) if prepare else arguments)
        if trains:
            apply = self._apply_plain if look(arguments) is not None else self._function.apply
            if prepare:
                return lambda arguments: apply(*prepare(*arguments), compute)
            return lambda arguments: apply(*arguments, compute)
        return (lambda arguments: compute(prepare(*arguments))) if prepare else compute

    def _with_torchs_forward(self, arguments: Sequence[Any]) -> Any:
        """Compute the forward by PyTorch, and record our gradient."""
        return self._function.apply(*self._prepared(arguments), lambda prepared: self.native(*arguments))

    def _uses_torch(self, arguments: Sequence[Any]) -> bool:
        """Check the arguments; return whether PyTorch computes calls with this look."""
        self._check(arguments)
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        if only_pytorch_understands(tensors):
            return True
        if self.options.runs_anywhere:
            return False
        if not dispatch.kernels_can_run(tensors[0]):
            return True
        takes = self.options.takes
        if takes is not None and not takes(*self._prepared(arguments)):
            return True
        return self._follows_measurements() and self._torch_wins(arguments)

    def _follows_measurements(self) -> bool:
        return not torch.compiler.is_compiling() and dispatch.mode() == "auto"

    def _check(self, arguments: Sequence[Any]) -> None:
        """Raise an error that names a wrong argument: the operator's own, or that of its annotations."""
        named = dict(zip(list(self._defaults)[self._positional :], arguments[self._positional :], strict=True))
        check: Callable[..., Any] = self._checking
        try:
            check(*arguments[: self._positional], **named)
        except Exception as error:
            if not str(error).startswith(f"{self.name}: "):
                self._kinds.require(arguments)
            raise
        self._kinds.require(arguments)

    def _prepared(self, arguments: Sequence[Any]) -> Sequence[Any]:
        return arguments if self._prepare is None else self._prepare(*arguments)

    def _finished(self, outputs: Any, arguments: Sequence[Any]) -> Any:
        """Return what the user gets of the kernels' outputs."""
        if self.options.returns == "all":
            return outputs
        result = _first(outputs)
        for place, function in self._finish:
            if arguments[place] is not None:
                result = function(result, arguments[place])
        return result

    def _torch_wins(self, arguments: Sequence[Any]) -> bool:
        """Whether PyTorch computes the call. Its backward needs its forward, so the backward decides in training."""
        direction: Direction = "backward" if wants_gradient(arguments) else "forward"
        device = next(value.device for value in arguments if isinstance(value, Tensor))
        most, shape = self.options.most_shapes_by_torch, signature(arguments, direction)
        if most is not None and len(self._by_torch) >= most and shape not in self._by_torch:
            return False
        measures = device.type == "cuda" and dispatch.state().measure
        if measures:
            directions: tuple[Direction, ...] = ("forward",) if direction == "forward" else ("forward", "backward")
            for one in directions:
                measure_once(self.name, self._in_order, arguments, one)
        wins = self.torch_computes(arguments, device, direction)
        if most is not None and (wins or measures):
            self._by_torch.add(shape)
        return wins

    def _torch_computes_forward(self, arguments: Sequence[Any]) -> bool:
        """Whether PyTorch computes the forward of a call whose backward is ours, which needs PyTorch's result alone."""
        if self.options.returns != "all" or self.options.private_outputs or not self._follows_measurements():
            return False
        device = next(value.device for value in arguments if isinstance(value, Tensor))
        return not self.options.runs_anywhere and self.torch_computes(arguments, device, "forward")

    def torch_computes(self, arguments: Sequence[Any], device: torch.device, direction: Direction) -> bool:
        """Return whether `auto` leaves this direction to PyTorch on a device. All arguments, in order."""
        return torch_computes(self.name, self._by_name(arguments), self.bucket_of(arguments), device, direction)

    def _in_order(self, *arguments: Any) -> Any:
        """Call the operator with all arguments in order, keyword-only ones included."""
        call: Callable[..., Any] = self
        return call(**self._by_name(arguments))

    def _by_name(self, arguments: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._defaults, arguments, strict=True))

    def named(self, **arguments: Any) -> dict[str, Any]:
        """Return all arguments by name, with defaults for those that are not given."""
        return self._by_name(self.completed(**arguments))

    def completed(self, **arguments: Any) -> tuple[Any, ...]:
        """Return all arguments in order, with defaults for those that are not given."""
        return self._bound((), arguments)

    def bucket_for(self, **arguments: Any) -> str:
        """Return the bucket of a call with these arguments by name, and defaults for the others."""
        return self.bucket_of(self.completed(**arguments))

    def bucket_of(self, arguments: Sequence[Any]) -> str:
        """Return the bucket of a call. PyTorch computes all calls of one bucket, or none. All arguments, in order."""
        sizes = self.options.sizes
        return tuning.bucket_of(arguments if sizes is None else sizes(*self._prepared(arguments)))


def operator(
    name: str,
    *,
    reference: Callable[..., Any],
    forward: Kernels,
    save: Save,
    gradient: Gradient,
    native: Callable[..., Any] | None = None,
    prepare: Prepare | None = None,
    options: Options = NO_OPTIONS,
) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Declare a public operator.

    Decorates the function whose signature and docstring users see and whose body checks the arguments, raising a
    ValueError or TypeError that names the wrong one.

    - `reference`: the meaning, in plain PyTorch.
    - `native`: the fastest PyTorch version, if that is not the reference.
    - `forward`: the kernels. They take the operator's own arguments, or what `prepare` returns for them.
    - `save(context, inputs, output)` and `gradient(context, *output_gradients)`: as torch.library.register_autograd
      takes them for `forward`.
    - `options`: everything else, see `Options`.
    """

    def declare(check: Callable[P, R]) -> Operator[P, R]:
        return Operator(
            name, check, reference=reference, native=native or reference, forward=forward, save=save,
            gradient=gradient, prepare=prepare, options=options,
        )  # fmt: skip

    return declare


def only_pytorch_understands(tensors: Sequence[Tensor]) -> bool:
    """Whether PyTorch must compute: under a torch.func transform, or for tensor subclasses that kernels cannot read."""
    return is_transformed() or not _KNOWN_CLASSES.issuperset(map(type, tensors))


def wants_gradient(arguments: Sequence[Any]) -> bool:
    """Return whether autograd records a call with these arguments."""
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in arguments)


def _without_memory(value: Any) -> Any:
    """Return a tensor with the same look but no memory; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _laid_out(outputs: Any, strides: Sequence[tuple[int, ...]]) -> Any:
    """Return one output or several with these strides, copied where they have others."""
    if isinstance(outputs, tuple):
        return tuple(_laid_out(one, [its]) for one, its in zip(outputs, strides, strict=True))
    if outputs.stride() == strides[0]:
        return outputs
    return torch.empty_strided(outputs.shape, strides[0], dtype=outputs.dtype, device=outputs.device).copy_(outputs)


def _first(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _trailing_defaults(defaults: Sequence[Any], positional: int) -> dict[int, tuple[Any, ...]]:
    """Map a number of positional arguments to the defaults of all other parameters, where each of them has one."""
    rest = {given: tuple(defaults[given:]) for given in range(positional + 1)}
    return {given: values for given, values in rest.items() if inspect.Parameter.empty not in values}
