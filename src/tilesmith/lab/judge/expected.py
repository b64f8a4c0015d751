"""What a task's definition gives for some inputs, and how a candidate's values compare with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tilesmith.lab.check.context import exact_products
from tilesmith.lab.comparison import CANCELLING, Comparison, compare, root_mean_square
from tilesmith.lab.expected import (
    DRAWS,
    DRAWS_AT_KINKS,
    DRAWS_OF_FEW,
    FEW,
    copied,
    names_of_changed,
    require_repeatable,
    size_of_terms,
    with_changed_inputs,
)
from tilesmith.lab.judge.task import Task, TaskError, Trial
from tilesmith.lab.rounding_model import Kinks, rounded
from tilesmith.lab.store_log import distinct_texts
from tilesmith.spec import Inputs, called, described, source_of

MOST_VALUES = 8  # of an input, in a message
WELL_CONDITIONED = 64.0  # PyTorch's own error in units of the dtype's rounding; beyond it a draw decides nothing


@dataclass(frozen=True)
class Wrong:
    """One output that is not what the definition gives. `excess` is the error over the allowed error."""

    output: str
    message: str
    element: tuple[int, ...] | None = None
    expected: float | None = None
    found: float | None = None
    excess: float = float("inf")


class Expected:
    """The definition's outputs and gradients: in float64, and in the dtype of the trial."""

    def __init__(
        self, task: Task, trial: Trial, inputs: Inputs, *, gradients: bool, cotangent_seed: int = 0,
        cotangents: Sequence[Tensor | None] | None = None,
    ) -> None:  # fmt: skip
        self._task = task
        self._inputs = inputs
        self._reference = with_changed_inputs(task.spec).reference
        self._changed = names_of_changed(task.spec, inputs)
        self._leaves = task.spec.leaves(inputs) if gradients else []
        try:
            with exact_products():
                exact_outputs, exact_leaves = self._call(copied(inputs, torch.float64))
                require_repeatable(exact_outputs, self._call(copied(inputs, torch.float64))[0])
                plain_outputs, plain_leaves = self._call(copied(inputs, None))
                self.exact = [one.detach() for one in exact_outputs]
                self.plain = [one.detach() for one in plain_outputs]
                if cotangents is None:
                    cotangents = self._drawn_cotangents(plain_outputs, cotangent_seed, strided=trial.hidden)
                self.cotangents = list(cotangents)
                self.exact_gradients = _gradients(exact_outputs, exact_leaves, self.cotangents)
                self.plain_gradients = _gradients(plain_outputs, plain_leaves, self.cotangents)
                self._draws = self._drawn(inputs)
        except Exception as error:
            reason = described(error, source_of(task.spec.reference))
            raise TaskError(f"{task.name}: the definition fails for {trial.case!r}, {trial.dtype}: {reason}") from error

    @property
    def is_well_conditioned(self) -> bool:
        """Whether PyTorch itself is accurate on these inputs, so that others can be held to it."""
        pairs = [*zip(self.plain, self.exact, strict=True)]
        pairs += [
            (one, exact)
            for name, exact in self.exact_gradients.items()
            if exact is not None and (one := self.plain_gradients[name]) is not None
        ]
        for plain, exact in pairs:
            if not plain.is_floating_point() or not plain.numel():
                continue
            error, norm = (plain.double() - exact.double()).norm(), exact.double().norm()
            if not bool(error <= WELL_CONDITIONED * torch.finfo(plain.dtype).eps * norm) or not bool(norm.isfinite()):
                return False
        return True

    def misshapen(self, outputs: Sequence[Tensor]) -> Wrong | None:
        """Return the first output of wrong number, shape or dtype."""
        if len(outputs) != len(self.plain):
            returned, wanted = len(outputs) - len(self._changed), len(self.plain) - len(self._changed)
            return Wrong("outputs", f"the candidate returns {returned} tensors, but must return {wanted}")
        for number, (output, like) in enumerate(zip(outputs, self.plain, strict=True)):
            name = self.output_name(number)
            if output.shape != like.shape:
                return Wrong(name, f"{name} has shape {tuple(output.shape)}, but must have {tuple(like.shape)}")
            if output.dtype != like.dtype:
                return Wrong(name, f"{name} has dtype {output.dtype}, but must have {like.dtype}")
        return None

    def output_name(self, number: int) -> str:
        returned = len(self.plain) - len(self._changed)
        if number >= returned:
            return f"the input {self._changed[number - returned]}"
        return "the output" if returned == 1 else f"output {number}"

    def wrong(self, outputs: Sequence[Tensor], gradients: Mapping[str, Tensor] | None = None) -> Wrong | None:
        """Return the first output or gradient that is wrong."""
        shape = self.misshapen(outputs)
        if shape is not None:
            return shape
        for number, (ours, exact, plain) in enumerate(zip(outputs, self.exact, self.plain, strict=True)):
            found = self._compared(self.output_name(number), ours, exact, plain, size_of_terms(self._inputs, exact))
            if found is not None:
                return found
        sizes = [float(root_mean_square(one)) for one in self.cotangents if one is not None]
        terms = CANCELLING * max(sizes, default=0.0)
        for name, ours in (gradients or {}).items():
            wanted, plain_wanted = self.exact_gradients.get(name), self.plain_gradients.get(name)
            wanted = torch.zeros_like(ours, dtype=torch.float64) if wanted is None else wanted
            plain_wanted = wanted.to(ours.dtype) if plain_wanted is None else plain_wanted
            if ours.shape != wanted.shape:
                return Wrong(f"gradient {name}", f"the gradient of {name} has shape {tuple(ours.shape)}")
            found = self._compared(f"the gradient of {name}", ours, wanted, plain_wanted, terms)
            if found is not None:
                return found
        return None

    def _compared(self, name: str, ours: Tensor, exact: Tensor, plain: Tensor, terms: float) -> Wrong | None:
        draws = self._draws_of(name)
        comparison = compare(ours, exact, draws, self._task.spec.roundings, terms, plain)
        if comparison.passed:
            return None
        found = _described(name, comparison, ours, exact)
        return replace(found, message=found.message + _where(comparison.wrong, self._inputs))

    def _drawn(self, inputs: Inputs) -> list[tuple[list[Tensor], dict[str, Tensor | None]]]:
        """Return the definition's values with modelled rounding errors, as the rule of `check` wants them."""
        found: list[tuple[list[Tensor], dict[str, Tensor | None]]] = []
        kinks = Kinks()

        def draw() -> None:
            with rounded(len(found), kinks):
                outputs, leaves = self._call(copied(inputs, None))
                found.append(([one.detach() for one in outputs], _gradients(outputs, leaves, self.cotangents)))

        fewest = min((one.numel() for one in self.plain if one.numel()), default=FEW)
        for _ in range(DRAWS_OF_FEW if fewest < FEW else DRAWS):
            draw()
        if kinks.turn():
            for _ in range(DRAWS_AT_KINKS):
                draw()
        return found

    def _draws_of(self, name: str) -> list[Tensor]:
        """Return the draws of an output or gradient by the name that reasons use."""
        names = [self.output_name(number) for number in range(len(self.plain))]
        if name in names:
            return [outputs[names.index(name)] for outputs, _ in self._draws]
        wanted = name.removeprefix("the gradient of ")
        return [one for _, gradients in self._draws if (one := gradients.get(wanted)) is not None]

    def _call(self, inputs: Inputs) -> tuple[list[Tensor], dict[str, Tensor]]:
        leaves = {name: inputs[name].detach().requires_grad_() for name in self._leaves}
        made = called(self._reference, {**inputs, **leaves})
        made = list(made.values()) if isinstance(made, dict) else made
        outputs = [made] if isinstance(made, Tensor) else list(made)
        if not all(isinstance(one, Tensor) for one in outputs):
            raise TypeError(f"the definition returns a {type(made).__name__}")
        return outputs, leaves

    def _drawn_cotangents(self, outputs: Sequence[Tensor], seed: int, *, strided: bool) -> list[Tensor | None]:
        """Draw cotangents, with `strided` in memory that is not contiguous: autograd gives such ones too."""
        generator = torch.Generator().manual_seed(seed)
        found: list[Tensor | None] = []
        for one in outputs:
            if not self._leaves or not one.requires_grad:
                found.append(None)
                continue
            drawn = torch.randn(one.shape, generator=generator, dtype=torch.float32).to(one.device, one.dtype)
            found.append(_in_strided_memory(drawn) if strided else drawn)
        return found


def _in_strided_memory(values: Tensor) -> Tensor:
    """Return the same values with their dimensions in reversed order in memory, and an element between any two."""
    reversed_dimensions = list(range(values.dim()))[::-1]
    sizes = [values.size(one) for one in reversed_dimensions]
    if not sizes:
        return values
    room = torch.zeros([*sizes[:-1], 2 * sizes[-1]], dtype=values.dtype, device=values.device)
    return room[..., ::2].permute(reversed_dimensions).copy_(values)


def _gradients(
    outputs: Sequence[Tensor], leaves: Mapping[str, Tensor], cotangents: Sequence[Tensor | None]
) -> dict[str, Tensor | None]:
    followed = [
        (one, weight.to(one.dtype))
        for one, weight in zip(outputs, cotangents, strict=True)
        if weight is not None and one.requires_grad
    ]
    if not followed or not leaves:
        return {}
    attached, weights = zip(*followed, strict=True)
    found = torch.autograd.grad(attached, list(leaves.values()), weights, allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def _described(name: str, comparison: Comparison, ours: Tensor, exact: Tensor) -> Wrong:
    index = comparison.first
    found, wanted = float(ours[index]), float(exact[index])
    excess = comparison.worst_error / comparison.worst_allowed if comparison.worst_allowed else float("inf")
    if comparison.wrong_elements == 0:
        message = f"{name}: the norm of the error is {comparison.error:.3g}, allowed is {comparison.allowed:.3g}"
        return Wrong(name, message, index, wanted, found, comparison.error / max(comparison.allowed, 1e-300))
    place = f"element {list(index)} of {name}" if index else name
    count = f"{comparison.wrong_elements} of {ours.numel()} elements are wrong"
    texts = "{}, but must be {}".format(*distinct_texts(found, wanted))
    message = f"{place} is {texts} (allowed error {comparison.first_allowed:.2g}); {count}"
    return Wrong(name, message, index, wanted, found, excess)


def _where(wrong: Tensor, inputs: Inputs) -> str:
    """Return the values of an integer input at which elements are wrong, if no element is right at them."""
    for name, value in inputs.items():
        if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
            continue
        if value.dim() == 0 or value.shape != wrong.shape[: value.dim()]:
            continue
        is_wrong = wrong.flatten(value.dim()).any(-1) if wrong.dim() > value.dim() else wrong
        bad, good = (value[one.to(value.device)] for one in (is_wrong, ~is_wrong))
        if bad.numel() and good.numel() and not torch.isin(bad, good).any():
            values = sorted(set(bad.tolist()))
            listed = [str(one) for one in values[:MOST_VALUES]] + ["…"] * (len(values) > MOST_VALUES)
            return f", only where {name} is {', '.join(listed)}"
    return ""
