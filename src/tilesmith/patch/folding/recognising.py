"""Which kind a module is: by the names and shapes of its parameters, then by what it computes.

Names and shapes leave questions open: outgoing or incoming, starting or ending, how a mean is taken, what a release
changed. So the module's own `forward` and ours compute the same random numbers, with random parameters, on the CPU: the
result with padding in evaluation, for small and large numbers too, and result and gradients in training. A module that
differs is not replaced. Where the module cannot run on the CPU, its norms may need a GPU: each is compared alone, on
its own device, with PyTorch's, which then stands for it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.patch.folding.grid_attention import Layers
from tilesmith.patch.folding.kinds import KINDS, Kind, Paths, example
from tilesmith.patch.gradients.plain_modules import PLAIN, has_hooks

MOST_ERROR = 1e-4  # relative to the norm, in single precision
TINY = 1e-4  # rounding of a gradient that is zero: softmax has none for a bias that all keys share
SCALES = (1.0, 1e-3, 1e3)  # of the numbers that go into a norm
HARMLESS = frozenset({
    "chunk_size", "ckpt_chunk_size", "inplace_safe", "_add_with_inplace", "_inplace_chunk_size", "_mask_trans",
    "use_kernels", "use_cuequiv_mul", "use_cuequiv_attn", "use_cueq_triangle_kernels", "use_deepspeed_evo_attention",
    "use_memory_efficient_kernel", "use_lma", "use_flash", "flash_mask", "triangle_multiplicative",
    "triangle_attention", "use_triton_triangle_kernels", "use_high_precision_attention", "_chunk_logits",
    "_checkpoint_chunks",
})  # fmt: skip
"""Arguments that choose how a module computes, not what."""


@dataclass(frozen=True)
class Recognised:
    """What a module is."""

    kind: Kind
    paths: Paths
    variant: str
    classes: list[type]

    def is_unchanged(self, module: nn.Module) -> bool:
        """Return whether the modules inside are those of the trial: no adapter, quantised weight or hook was added."""
        inside = list(module.modules())[1:]
        if list(map(type, inside)) != self.classes or any(map(_has_own_behaviour, inside)):
            return False
        return all(type(parameter) in PLAIN for parameter in module.parameters())


def recognised(module: nn.Module) -> Recognised | str | None:
    """Return what a module is; a reason where it has the structure of a kind but cannot be replaced; else None."""
    reason = None
    for kind in KINDS:
        for paths in kind.layouts:
            if not _has_structure(module, paths):
                continue
            found = _tried(module, kind, paths)
            if isinstance(found, Recognised):
                return found
            reason = found
    return reason


def _has_structure(module: nn.Module, paths: Paths) -> bool:
    """Return whether a module has these layers, linear or norms, and no other parameters. A norm may have none."""
    inside = dict(module.named_modules())
    if not inside.keys() >= set(paths.values()):
        return False
    names = {name.rpartition(".")[0] for name, _ in module.named_parameters()}
    if names != {path for path in paths.values() if any(True for _ in inside[path].parameters())}:
        return False
    return all(one.ndim in (1, 2) and one.is_floating_point() for one in module.parameters())


def _has_own_behaviour(module: nn.Module) -> bool:
    return "forward" in vars(module) or has_hooks(module)


def _tried(module: nn.Module, kind: Kind, paths: Paths) -> Recognised | str:
    """Return the variant that computes the same as the module, or why there is none."""
    inside = list(module.modules())[1:]
    if "forward" in vars(module):
        return "it has a forward of its own"
    if any(map(_has_own_behaviour, inside)):
        return "a module inside has hooks or a forward of its own"
    generator = torch.Generator().manual_seed(0)
    try:
        plain = _with_random_parameters(module, generator)
    except Exception as error:  # a module of another project may raise anything
        return f"it cannot be copied: {error}"
    layers = Layers.of(plain, paths, torch.float32)
    names = list(inspect.signature(type(module).forward).parameters)[1:]  # without self
    first, *others = kind.inputs
    try:
        padded = example(kind, _widths(module, layers), names, generator)
    except KeyError as error:
        missing = error.args[0]
        return f"its layer for {missing} has no weight" if missing in paths else f"it has no attribute {missing!r}"
    scaled = [_scaled(padded, scale, kind, paths) for scale in SCALES]
    full = {name: torch.ones_like(one) if name == "mask" else one for name, one in padded.items()}

    def theirs(inputs: dict[str, Any]) -> Any:
        return plain(inputs[first], **{name: inputs[name] for name in others if name in inputs})

    def ours(inputs: dict[str, Any], variant: str) -> Tensor:
        given = [inputs.get(name) for name in kind.inputs]
        return kind.compute(layers, variant, *without_trailing_nones(given))

    def in_both_modes() -> tuple[list[Any], list[Tensor]]:
        plain.eval()
        with torch.no_grad():
            in_evaluation = list(map(theirs, scaled))
        return in_evaluation, _with_gradients(plain.train(), theirs, full)

    try:
        try:
            wanted, wanted_in_training = in_both_modes()
        except Exception:
            if not _replace_layer_norms(plain, module, paths):
                raise
            wanted, wanted_in_training = in_both_modes()
    except Exception as error:
        return f"its forward does not take {', '.join(kind.inputs)}: {error}"
    for variant in kind.variants:
        try:
            with torch.no_grad():
                made = [ours(one, variant) for one in scaled]
            if not all(map(_are_close, made, wanted)):
                continue
            in_training = _with_gradients(plain, partial(ours, variant=variant), full)
        except (ValueError, TypeError, RuntimeError) as error:
            return f"the operators do not take its shapes: {error}"
        if not all(map(_are_close, in_training, wanted_in_training)):
            return "in training it computes something else than the published algorithm"
        if kind.cache in names and not _share_cache(kind.cache, theirs, partial(ours, variant=variant), padded):
            return f"its {kind.cache} keeps something else than the published module's"
        return Recognised(kind, paths, variant, list(map(type, inside)))
    return "it computes something else than the published algorithm"


def _widths(module: nn.Module, layers: Layers) -> dict[str, int]:
    """Return a module's own numbers, such as that of its heads, and the columns of the weight for each role."""
    numbers = {name: one for name, one in vars(module).items() if isinstance(one, int)}
    weights = {role: layers.optional_weight(role) for role in layers.layers}
    return numbers | {role: weight.shape[-1] for role, weight in weights.items() if weight is not None}


def _with_random_parameters(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy of a module on the CPU, in single precision and evaluation, whose parameters are random."""
    plain = copy.deepcopy(module)
    if any(parameter.is_meta for parameter in plain.parameters()):
        plain = plain.to_empty(device="cpu")
    plain = plain.to(device="cpu", dtype=torch.float32).eval()
    for parameter in plain.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.7 + 0.3 * noise
        parameter.requires_grad_()
    return plain


def _scaled(inputs: dict[str, Any], scale: float, kind: Kind, paths: Paths) -> dict[str, Any]:
    """Return inputs in which those that go into a norm are multiplied."""
    first, *_ = kind.inputs
    normed = {name for name, shape in kind.inputs.items() if shape and "norm" in shape[-1]}
    normed |= {first} if "norm" in paths else set()
    return {name: one * scale if name in normed and one is not None else one for name, one in inputs.items()}


def _replace_layer_norms(plain: nn.Module, module: nn.Module, paths: Paths) -> bool:
    """Let PyTorch's layer norm stand for those of other classes in a module's copy; return whether there are any."""
    device = next(module.parameters()).device
    found = [path for path in paths.values() if _is_layer_norm(module.get_submodule(path), device)]
    for path in found:
        plain.set_submodule(path, _LayerNorm(plain.get_submodule(path)))
    return bool(found)


class _LayerNorm(nn.Module):
    """A layer norm with another's parameters, in place of a class whose kernel needs a GPU, such as Protenix's."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
        self.eps = float(getattr(norm, "eps", 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


def _is_layer_norm(module: nn.Module, device: torch.device) -> bool:
    """Return whether a module of a class that PyTorch lacks computes a layer norm, on its own device."""
    parameters = dict(module.named_parameters())
    columns = _columns(module)
    if isinstance(module, (nn.Linear, nn.LayerNorm)) or columns is None or device.type == "meta":
        return False
    if any(name not in {"weight", "bias"} or one.shape != (columns,) for name, one in parameters.items()):
        return False
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(3, 5, columns, generator=generator).to(device)

    def found(norm: nn.Module) -> list[Tensor]:
        tried = [_with_gradients(norm, lambda inputs: norm(inputs["x"]), {"x": scale * numbers}) for scale in SCALES]
        return [one for each in tried for one in each]

    try:
        norm = copy.deepcopy(module).float()
        for parameter in norm.parameters():
            parameter.data = torch.randn(columns, generator=generator).to(device)
            parameter.requires_grad_()
        wanted = found(_LayerNorm(norm))
        return all(all(map(_are_close, found(norm.train(training)), wanted)) for training in (False, True))
    except Exception:  # code of any kind
        return False


def _columns(norm: nn.Module) -> int | None:
    """Return how many columns a norm takes, if it says so."""
    shape: Any = getattr(norm, "normalized_shape", None)
    shape = next((one.shape for one in norm.parameters()), shape)
    if isinstance(shape, int):
        return shape
    return int(shape[0]) if isinstance(shape, (tuple, list)) and len(shape) == 1 else None


def _with_gradients(
    plain: nn.Module, function: Callable[[dict[str, Any]], Any], inputs: dict[str, Any]
) -> list[Tensor]:
    """Return a function's result, and the gradients of its inputs and of the module's parameters."""
    moving = {name: one for name, one in inputs.items() if isinstance(one, Tensor) and name != "mask"}
    leaves = {**inputs, **{name: one.detach().requires_grad_() for name, one in moving.items()}}
    result = function(leaves)
    if not isinstance(result, Tensor):
        raise TypeError(f"it returns a {type(result).__name__}")
    seen = [*plain.parameters(), *(leaves[name] for name in moving)]
    cotangent = torch.arange(result.numel(), device=result.device).mul(1.3).sin().view(result.shape)
    gradients = torch.autograd.grad(result, seen, cotangent, allow_unused=True, materialize_grads=True)
    return [result.detach(), *gradients]


def _share_cache(name: str, theirs: Callable[..., Any], ours: Callable[..., Any], inputs: dict[str, Any]) -> bool:
    """Return whether each of two functions reads what the other left in a cache, and no longer z."""
    wanted = theirs(inputs)
    for write, read in ((theirs, ours), (ours, theirs)):
        cache: dict[str, Any] = {}
        try:
            write({**inputs, name: cache})
            again = read({**inputs, "z": -inputs["z"], name: cache})
        except Exception:  # code of any kind
            return False
        if not _are_close(again, wanted):
            return False
    return True


def without_trailing_nones(given: list[Any]) -> list[Any]:
    while given and given[-1] is None:
        given = given[:-1]
    return given


def _are_close(ours: Tensor, wanted: object) -> bool:
    if not isinstance(wanted, Tensor) or wanted.shape != ours.shape:
        return False
    return bool((ours - wanted).norm() <= MOST_ERROR * wanted.norm() + TINY)
