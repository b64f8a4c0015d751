"""The calls to time: one provider in one mode, on several sets of inputs."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.bench.measuring.timing import Call, Outputs, Rotation, rotation
from tilesmith.lab.bench.result import OURS
from tilesmith.spec import Case, Inputs, Spec, is_differentiable

Function = Callable[..., Any]
COTANGENT = "cotangent_{}"  # the name of an output's cotangent among the values of an input set


def providers(spec: Spec) -> list[str]:
    """Return all providers: ours first, then PyTorch, torch.compile and the spec's rivals."""
    return [OURS, *dict.fromkeys(["torch", "compile", *spec.rivals])]


def function_of(spec: Spec, provider: str) -> Function:
    """Return the function of a provider. For "torch" it is the reference unless the spec names another."""
    if provider == OURS:
        return spec.op
    if provider in spec.rivals:
        return spec.rivals[provider]
    plain = spec.rivals.get("torch", spec.reference)
    if provider == "torch":
        return plain
    torch._dynamo.reset()  # earlier sizes would make it compile for dynamic shapes
    return torch.compile(plain, dynamic=False)


@dataclass
class InputSet:
    """Arguments and cotangents in their own memory."""

    arguments: Inputs
    cotangents: list[Tensor]

    @property
    def values(self) -> Inputs:
        named = {COTANGENT.format(number): cotangent for number, cotangent in enumerate(self.cotangents)}
        return {**self.arguments, **named}

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values.values() if isinstance(value, Tensor))


@dataclass
class TimedCalls:
    """One provider in one mode: one call per set of inputs."""

    spec: Spec
    case: Case
    dtype: torch.dtype
    device: str
    mode: str
    function: Function

    def __post_init__(self) -> None:
        self.sets: list[InputSet] = []
        self.calls: list[Call] = []
        self._refreshed = False
        self._chance = random.Random()
        self._swaps: dict[int, list[tuple[float, float]]] = {}  # of each input set, since its values were last set

    def add_sets(self, number: int) -> None:
        """Create input sets with different values, and a call for each."""
        for seed in range(len(self.sets), len(self.sets) + number):
            made = self._input_set(seed)
            self.sets.append(made)
            self.calls.append(self.call_on(made))

    def add_rotated_sets(self, cache_bytes: int, *, warm: bool) -> Rotation:
        """Make as many sets of inputs as calls must go round, so that inputs come from memory unless `warm`."""
        self.add_sets(1)
        output_bytes = sum(output.nbytes for output in self.calls[0]())
        rotated = rotation(self.sets[0].nbytes, output_bytes, cache_bytes, warm=warm)
        self.add_sets(rotated.sets - 1)
        return rotated

    def refresh(self) -> None:
        """Put new values into the same memory, so that earlier results become wrong.

        A backward alone uses what its forward saved, so only the cotangents can change there.
        """
        self._refreshed = True
        self._swaps = {}
        for place, one in enumerate(self.sets):
            fresh = self.expected(place)
            held, new = (one.cotangents, fresh.cotangents)
            if self.mode != "bwd":
                held, new = list(one.values.values()), list(fresh.values.values())
            for value, fresh_value in zip(held, new, strict=True):
                if isinstance(value, Tensor):
                    value.copy_(fresh_value)

    def stir(self, places: Iterable[int]) -> None:
        """Swap two elements of every floating-point input of these sets: results of the last replay become wrong.

        Of a backward alone only the cotangents change, as in `refresh`.
        """
        one, other = self._chance.random(), self._chance.random()
        chosen = list(places)
        for place in chosen:
            self._swaps.setdefault(place, []).append((one, other))
        flat = [tensor.view(-1) for place in chosen for tensor in self._stirred(self.sets[place])]
        pairs = [(int(one * tensor.numel()), int(other * tensor.numel())) for tensor in flat]
        first = [tensor[at : at + 1] for tensor, (at, _) in zip(flat, pairs, strict=True)]
        second = [tensor[at : at + 1] for tensor, (_, at) in zip(flat, pairs, strict=True)]
        if flat:
            kept = [tensor.clone() for tensor in first]
            torch._foreach_copy_(first, second)
            torch._foreach_copy_(second, kept)

    def expected(self, place: int) -> InputSet:
        """Return the values that an input set must hold now."""
        made = self._input_set(place)
        if self._refreshed:
            fresh = self._input_set(len(self.sets) + place)
            made = InputSet(made.arguments if self.mode == "bwd" else fresh.arguments, fresh.cotangents)
        for tensor in self._stirred(made):
            places, sources = _swapped(self._swaps.get(place, ()), tensor.numel())
            flat = tensor.view(-1)
            flat[places] = flat[sources]
        return made

    def _stirred(self, made: InputSet) -> list[Tensor]:
        """Return the tensors whose elements may change places."""
        names = [name for name in made.arguments if name not in self.spec.fixed] if self.mode != "bwd" else []
        values = [*(made.arguments[name] for name in names), *made.cotangents]
        return [one for one in values if is_differentiable(one) and one.numel() and one.is_contiguous()]

    def _input_set(self, seed: int) -> InputSet:
        outputs = () if self.mode == "fwd" else self._output_shapes
        torch.manual_seed(seed)
        arguments = self.spec.inputs(self.case, self.dtype, self.device)
        return InputSet(arguments, [torch.randn(shape, dtype=dtype, device=self.device) for shape, dtype in outputs])

    @cached_property
    def _output_shapes(self) -> tuple[tuple[torch.Size, torch.dtype], ...]:
        """Shapes and dtypes of the outputs. Computed once, since the reference may be slow."""
        with torch.no_grad():
            outputs = as_outputs(self.spec.reference(**self.spec.inputs(self.case, self.dtype, self.device)))
        return tuple((one.shape, one.dtype) for one in outputs)

    def call_on(self, made: InputSet) -> Call:
        """Return the call on one set of inputs. For a backward alone, the forward runs here."""
        if self.mode == "fwd":
            ready = with_arguments(self.function, self.spec, made.arguments)  # binds arguments outside the timed call
            return lambda: as_outputs(ready())
        if self.mode == "both":
            return partial(computed(self.function, self.spec, self.mode), **made.values)
        leaves = leaves_of(self.spec, made.arguments)
        outputs = as_outputs(with_arguments(self.function, self.spec, {**made.arguments, **leaves})())
        return partial(gradients, outputs, leaves, made.cotangents, retain=True)


def _swapped(swaps: Sequence[tuple[float, float]], elements: int) -> tuple[list[int], list[int]]:
    """Return the places that swaps changed, and where their elements were before."""
    sources: dict[int, int] = {}
    for one, other in swaps:
        first, second = int(one * elements), int(other * elements)
        sources[first], sources[second] = sources.get(second, second), sources.get(first, first)
    return list(sources), list(sources.values())


def computed(function: Function, spec: Spec, mode: str) -> Callable[..., Outputs]:
    """Return a function of arguments and cotangents that returns outputs (fwd), gradients (bwd), or both."""

    def forward(**values: Any) -> Outputs:
        with torch.no_grad():
            return as_outputs(with_arguments(function, spec, values)())

    def differentiated(**values: Any) -> Outputs:
        cotangents = dict(_cotangents_in(values))
        arguments = {name: value for name, value in values.items() if name not in cotangents}
        leaves = leaves_of(spec, arguments)
        with torch.enable_grad():
            outputs = as_outputs(with_arguments(function, spec, {**arguments, **leaves})())
        found = gradients(outputs, leaves, list(cotangents.values()), retain=False)
        return (*(output.detach() for output in outputs), *found) if mode == "both" else found

    return forward if mode == "fwd" else differentiated


def with_arguments(function: Function, spec: Spec, arguments: Mapping[str, Any]) -> Function:
    """Bind the arguments: by position where the order is the operator's, since rivals may name them differently."""
    parameters = inspect.signature(spec.op).parameters
    if list(arguments) != list(parameters)[: len(arguments)]:
        return partial(function, **arguments)
    by_name = {name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
    return partial(
        function,
        *(value for name, value in arguments.items() if name not in by_name),
        **{name: value for name, value in arguments.items() if name in by_name},
    )


def leaves_of(spec: Spec, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the differentiable arguments as leaves that require gradients and share memory with the originals."""
    return {name: arguments[name].detach().requires_grad_() for name in spec.leaves(dict(arguments))}


def gradients(
    outputs: Sequence[Tensor], leaves: Mapping[str, Tensor], cotangents: Sequence[Tensor], *, retain: bool
) -> Outputs:
    """Return the gradient of every leaf that has one."""
    followed = [
        (output, cotangent) for output, cotangent in zip(outputs, cotangents, strict=True) if output.requires_grad
    ]
    found = torch.autograd.grad(
        [output for output, _ in followed],
        list(leaves.values()),
        [cotangent for _, cotangent in followed],
        retain_graph=retain,
        allow_unused=True,
    )
    return tuple(one for one in found if one is not None)


def as_outputs(made: Any) -> Outputs:
    """Return the tensors among the results; others may be None."""
    return (made,) if isinstance(made, Tensor) else tuple(one for one in made if one is not None)


def _cotangents_in(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    prefix = COTANGENT.format("")
    return [(name, value) for name, value in values.items() if name.startswith(prefix)]
