"""Which kind a module is: by the names and shapes of its parameters, then by what it computes.

Names and shapes leave questions open: outgoing or incoming, starting or ending, how a mean is taken, what a release
changed. So the module's own `forward` and ours compute the same random numbers, with random parameters, on the CPU. A
module whose results differ is not replaced.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tilesmith.patch.folding.grid_attention import Layers
from tilesmith.patch.folding.kinds import KINDS, Kind, Paths, example

MOST_ERROR = 1e-4  # relative to the norm, in single precision
HARMLESS = frozenset({
    "chunk_size", "ckpt_chunk_size", "inplace_safe", "_add_with_inplace", "_inplace_chunk_size", "_mask_trans",
    "use_kernels", "use_cuequiv_mul", "use_cuequiv_attn", "use_cueq_triangle_kernels", "use_deepspeed_evo_attention",
    "use_memory_efficient_kernel", "use_lma", "use_flash", "flash_mask", "triangle_multiplicative",
    "triangle_attention", "_chunk_logits", "_checkpoint_chunks",
})  # fmt: skip
"""Arguments that choose how a module computes, not what."""


@dataclass(frozen=True)
class Recognised:
    """What a module is."""

    kind: Kind
    paths: Paths
    variant: str


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
    """Return whether a module has these layers, linear or norms, and no other parameters."""
    names = {name.rpartition(".")[0] for name, _ in module.named_parameters()}
    if names != set(paths.values()):
        return False
    return all(parameter.ndim in (1, 2) for parameter in module.parameters())


def _tried(module: nn.Module, kind: Kind, paths: Paths) -> Recognised | str:
    """Return the variant that computes the same as the module, or why there is none."""
    if "forward" in vars(module):
        return "it has a forward of its own"
    generator = torch.Generator().manual_seed(0)
    try:
        plain = copy.deepcopy(module).to(device="cpu", dtype=torch.float32).eval()
    except Exception as error:  # a module of another project may raise anything
        return f"it cannot be copied: {error}"
    with torch.no_grad():
        for parameter in plain.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.7 + 0.3 * noise)
        layers = Layers(plain, paths, torch.float32)
        widths = {role: layers.weight(role).shape[-1] for role in paths}
        names = list(inspect.signature(type(module).forward).parameters)[1:]  # without self
        first, *others = kind.inputs
        inputs = {name: one for name, one in example(kind, widths, generator).items() if name in (first, *names)}
        try:
            wanted = plain(inputs[first], **{name: inputs[name] for name in others if name in inputs})
        except Exception as error:
            return f"its forward does not take {', '.join(kind.inputs)}: {error}"
        given = [inputs.get(name) for name in kind.inputs]
        for variant in kind.variants:
            try:
                ours = kind.compute(layers, variant, *without_trailing_nones(given))
            except (ValueError, TypeError, RuntimeError) as error:
                return f"the operators do not take its shapes: {error}"
            if _are_close(ours, wanted):
                return Recognised(kind, paths, variant)
    return "it computes something else than the published algorithm"


def without_trailing_nones(given: list[Any]) -> list[Any]:
    while given and given[-1] is None:
        given = given[:-1]
    return given


def _are_close(ours: Tensor, wanted: object) -> bool:
    if not isinstance(wanted, Tensor) or wanted.shape != ours.shape:
        return False
    return bool((ours - wanted).norm() <= MOST_ERROR * wanted.norm())
