"""`fold`: our operators in a model of proteins, in place."""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tilesmith.patch.folding.grid_attention import Layers
from tilesmith.patch.folding.recognising import HARMLESS, Recognised, recognised, without_trailing_nones
from tilesmith.patch.gradients.plain_modules import has_hooks
from tilesmith.patch.own_forward import give_forward
from tilesmith.patch.patching import REPORT, require_module, unpatch
from tilesmith.patch.usual_modes import in_usual_modes

Model = TypeVar("Model", bound=nn.Module)
WORDS = ("triangle", "outerproduct", "transition", "pairbias", "msaattention", "msarow", "msacolumn", "pairweighted")
"""What names of classes contain that a user would expect to be replaced."""
OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@dataclass
class FoldReport:
    """What `fold` did to a model: how many modules of each kind it replaced, and for each class it left, the reason."""

    model: str
    replaced: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counted = ", ".join(f"{kind} ({count})" for kind, count in self.replaced.items()) or "nothing"
        return "\n".join([
            f"{self.model}: {counted} by Tilesmith", *(f"{name} left: {reason}" for name, reason in self.left.items()),
        ])  # fmt: skip


@in_usual_modes()
def fold(model: Model) -> Model:
    """Run the triangle updates, attentions, outer products and transitions of a model on our operators, in place.

    Modules of Boltz, OpenFold, OpenFold3 and Protenix, of any version, are recognised by the names and shapes of their
    parameters, and tried with random numbers first. Parameters and state dict stay unchanged. `report(model)` returns
    what was replaced, and `unpatch(model)` undoes it. Calls with arguments that ask for anything else run the module's
    own forward, and so do calls after a layer inside was changed.
    """
    require_module("fold", model)
    unpatch(model)
    done = FoldReport(type(model).__name__)
    replaced: Counter[str] = Counter()
    inside: set[nn.Module] = set()
    known: dict[Any, Recognised | str | None] = {}
    for module in model.modules():
        if module in inside:
            continue
        key = _looks(module)
        if key not in known:
            known[key] = recognised(module)
        found = known[key]
        name = type(module).__name__
        if isinstance(found, Recognised):
            give_forward(module, _forward(type(module).forward, found))
            replaced[found.kind.name] += 1
            inside.update(module.modules())
        elif found is not None:
            done.left[name] = found
        elif any(word in name.lower() for word in WORDS) and not _holds_known(module, known):
            done.left[name] = "its parameters are none that Tilesmith knows"
    done.replaced = dict(replaced)
    setattr(model, REPORT, done)
    return model


def _looks(module: nn.Module) -> Any:
    """Return everything that decides what a module is: its parameters' shapes, and of itself and each module inside
    the class, the attributes, the buffers, and whether it has hooks or a forward of its own.
    """
    shapes = tuple((name, tuple(one.shape)) for name, one in module.named_parameters())
    return shapes, tuple(
        (name, type(one), _attributes(one), "forward" in vars(one), one is not module and has_hooks(one))
        for name, one in module.named_modules()
    )


def _attributes(module: nn.Module) -> tuple[Any, ...]:
    """Return a module's buffers and attributes, those that cannot be compared by their identity."""
    own = [(name, one) for name, one in vars(module).items() if name not in OF_EVERY_MODULE]
    return tuple((name, type(one), _comparable(one)) for name, one in (*own, *module.named_buffers(recurse=False)))


def _comparable(one: Any) -> Any:
    try:
        hash(one)
    except TypeError:
        return id(one)
    return id(one) if isinstance(one, Tensor) else one


def _holds_known(module: nn.Module, known: dict[Any, Recognised | str | None]) -> bool:
    """Return whether a module only wraps others that are recognised, or will be."""
    for one in module.modules():
        if one is module:
            continue
        key = _looks(one)
        if key not in known:
            known[key] = recognised(one)
        if known[key] is not None:
            return True
    return False


def _forward(original: Callable[..., Any], found: Recognised) -> Callable[..., Any]:
    """Return a `forward` with the signature of the original."""
    signature = inspect.signature(original)
    names = list(signature.parameters)[1:]
    kind = found.kind
    ours = [names[0], *list(kind.inputs)[1:]]
    others = [name for name in names if name not in ours]
    unused = [name for name, shape in kind.inputs.items() if not shape]

    @functools.wraps(original)
    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        given = bound.arguments
        x = given[names[0]]
        asks_more = any(
            name not in HARMLESS and not _is_default(signature.parameters[name], given[name]) for name in others
        )
        asks_more = asks_more or any(isinstance(given.get(name), Tensor) for name in unused)
        if asks_more or not isinstance(x, Tensor) or not x.is_floating_point() or not found.is_unchanged(self):
            return original(self, *arguments, **named)
        update = _computed(self, found, [given.get(name) for name in ours])
        if kind.adds_in_place and given.get("inplace_safe") and given.get("_add_with_inplace"):
            return _added(x, update)
        return update

    return forward


def _added(x: Tensor, update: Tensor) -> Tensor:
    """Return the sum, in x unless autograd records it: OpenFold3's templates drop what is returned and read x."""
    return x + update if update.requires_grad else x.add_(update)


def _is_default(parameter: inspect.Parameter, value: Any) -> bool:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return not value
    return value is parameter.default or (not isinstance(value, Tensor) and value == parameter.default)


def _computed(module: nn.Module, found: Recognised, given: list[Any]) -> Tensor:
    """Return the update in autocast's dtype, if autocast is on."""
    device = given[0].device.type
    if not torch.is_autocast_enabled(device):
        return _computed_in(given[0].dtype, module, found, given)
    with torch.autocast(device, enabled=False):  # which would round what the kind leaves in another dtype
        return _computed_in(torch.get_autocast_dtype(device), module, found, given)


def _computed_in(dtype: torch.dtype, module: nn.Module, found: Recognised, given: list[Any]) -> Tensor:
    kind = found.kind
    cast = [
        one.to(dtype) if isinstance(one, Tensor) and name != "mask" and not kind.any_dtype else one
        for name, one in zip(kind.inputs, given, strict=True)
    ]
    layers = Layers.of(module, found.paths, dtype)
    if kind.any_rank:
        return kind.compute(layers, found.variant, *without_trailing_nones(cast))
    ranks = [len(shape) for shape in kind.inputs.values()]
    parts = [_batch_and_rest(one, rank) for one, rank in zip(cast, ranks, strict=True)]
    lead = torch.broadcast_shapes(*(part[0] for part in parts if part))  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    joined = [
        one if part is None else one.expand(*lead, *part[1]).reshape(math.prod(lead), *part[1])
        for one, part in zip(cast, parts, strict=True)
    ]
    update = kind.compute(layers, found.variant, *without_trailing_nones(joined))
    return update.reshape(*lead, *update.shape[1:])


def _batch_and_rest(one: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the batch dimensions, none to several, and the others of a tensor that has one batch dimension in `rank`;
    None for anything but a tensor.
    """
    if not isinstance(one, Tensor) or not rank:
        return None
    start = max(one.ndim - rank + 1, 0)
    return tuple(one.shape[:start]), ((1,) * (rank - 1 - one.ndim)) + tuple(one.shape[start:])
