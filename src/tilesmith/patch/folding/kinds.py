"""The kinds of modules: the names of their layers in each project, their arguments, and what they compute.

To add a project, add the names of its layers to a kind. To add a kind, write what it computes. A module is replaced
only if it computes the same as the kind on random numbers, so a wrong entry changes no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.fold import triangle_multiplicative_update
from tilesmith.ops.outer_product_mean import outer_product_mean
from tilesmith.ops.swiglu import swiglu
from tilesmith.ops.transition import transition
from tilesmith.patch.folding.grid_attention import Layers, along_rows, triangle
from tilesmith.patch.folding.pair_bias import conditioned, over_batches, over_samples

Paths = dict[str, str]


@dataclass(frozen=True)
class Kind:
    """Modules that compute the same.

    - `layouts`: for each project that names its layers differently, the path of the layer for each role.
    - `inputs`: the arguments, the first whatever its name, with a shape each, in named sizes. A role stands for the
      columns of its layer, any other name for a number of the module. An argument without a shape has no tensor.
    - `compute(layers, variant, *inputs)`: the update. Modules of one structure may differ in a variant.
    - `cache`: the argument, a dictionary, that keeps what z becomes between calls; then z is no longer read.
    - `any_rank`: `compute` takes the arguments in any shape; else it takes one batch dimension.
    - `any_dtype`: `compute` takes the arguments in any dtype; else under autocast in autocast's.
    - `adds_in_place`: the arguments `inplace_safe` and `_add_with_inplace` together ask for the sum, in place.
    """

    name: str
    layouts: tuple[Paths, ...]
    inputs: dict[str, tuple[str, ...]]
    compute: Callable[..., Tensor]
    variants: tuple[str, ...] = ("",)
    adds_in_place: bool = False
    cache: str = ""
    any_rank: bool = False
    any_dtype: bool = False


def multiplied(layers: Layers, variant: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
    def joined(role: str) -> tuple[Tensor, Tensor | None]:
        if role in layers.layers:
            return layers.weight(role), layers.bias(role)
        roles = [f"{side} {role}" for side in ("left", "right")]
        biases = [one for one in map(layers.bias, roles) if one is not None]
        return torch.cat([layers.weight(one) for one in roles]), torch.cat(biases) if biases else None

    (p_weight, p_bias), (g_weight, g_bias) = joined("projection"), joined("gate")
    return triangle_multiplicative_update(
        x, variant, mask, layers.weight("norm"), layers.bias("norm"), p_weight, p_bias, g_weight, g_bias,
        layers.weight("output norm"), layers.bias("output norm"), layers.weight("output"), layers.bias("output"),
        layers.weight("output gate"), layers.bias("output gate"), layers.eps("norm"),
    )  # fmt: skip


def swiglu_transition(layers: Layers, variant: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
    gate, up = layers.joined(layers.normed("norm", x), "gate", "up")
    return _masked(layers.linear("output", swiglu(gate, up)), mask)


def relu_transition(layers: Layers, variant: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
    norm, expand, contract = map(layers.bias, ("norm", "expand", "contract"))
    if norm is not None and expand is not None and contract is not None:
        update = transition(
            x, layers.weight("norm"), norm, layers.weight("expand"), expand, layers.weight("contract"), contract,
            layers.eps("norm"),
        )  # fmt: skip
        return _masked(update, mask)
    hidden = layers.linear("expand", layers.normed("norm", x))
    return _masked(layers.linear("contract", F.relu(hidden)), mask)


def _masked(update: Tensor, mask: Tensor | None) -> Tensor:
    return update if mask is None else update * mask[..., None].to(update.dtype)


def outer_product(layers: Layers, variant: str, m: Tensor, mask: Tensor | None = None) -> Tensor:
    """OpenFold divides the biased projection by eps + count, Boltz the sum by the count, before the projection."""
    a, b = layers.joined(layers.normed("norm", m), "left", "right")
    exists = None if mask is None else mask != 0
    weight, bias = layers.weight("output"), layers.bias("output")
    if variant == "with eps":
        eps = float(getattr(layers.module, "eps", 1e-3))
        update = outer_product_mean(a, b, exists, weight, bias, eps=eps)
        if exists is None or bias is None or not eps:
            return update
        counts = exists.to(update.dtype)
        is_missing = torch.einsum("bsi,bsj->bij", counts, counts) == 0  # a pair that no sequence has: the bias over eps
        return torch.where(is_missing[..., None], bias / eps, update)
    update = outer_product_mean(a, b, exists, weight, eps=1e-20)  # too small to change a count of one or more
    return update if bias is None else update + bias


_MHA = {
    "query": "mha.linear_q", "key": "mha.linear_k", "value": "mha.linear_v", "gate": "mha.linear_g",
    "output": "mha.linear_o",
}  # fmt: skip
_OPENFOLD_MULTIPLICATION = {
    "norm": "layer_norm_in", "output norm": "layer_norm_out", "output": "linear_z", "output gate": "linear_g",
}  # fmt: skip
_BOLTZ_HEADS = {"query": "proj_q", "key": "proj_k", "value": "proj_v", "gate": "proj_g", "output": "proj_o"}
_BOLTZ_PAIR_BIAS = {**_BOLTZ_HEADS, "pair_norm": "proj_z.0", "edge": "proj_z.1"}
_OPENFOLD3_PAIR_BIAS = {"norm": "layer_norm_a", "pair_norm": "layer_norm_z", "edge": "linear_z", **_MHA}
_PROTENIX_PAIR_BIAS = {
    "norm": "layernorm_a", "pair_norm": "layernorm_z", "edge": "linear_nobias_z",
    **{role: path.replace("mha", "attention") for role, path in _MHA.items()},
}  # fmt: skip
_OPENFOLD3_CONDITIONED = {
    **_OPENFOLD3_PAIR_BIAS, "norm": "layer_norm_a.layer_norm_a", "condition norm": "layer_norm_a.layer_norm_s",
    "condition scale": "layer_norm_a.linear_g", "condition shift": "layer_norm_a.linear_s",
    "output gate": "linear_ada_out",
}  # fmt: skip
_PROTENIX_CONDITIONED = {
    **_PROTENIX_PAIR_BIAS, "norm": "layernorm_a.layernorm_a", "condition norm": "layernorm_a.layernorm_s",
    "condition scale": "layernorm_a.linear_s", "condition shift": "layernorm_a.linear_nobias_s",
    "output gate": "linear_a_last",
}  # fmt: skip
PAIRS = {"x": ("batch", "n", "n", "norm"), "mask": ("batch", "n", "n")}
ALIGNMENT = ("batch", "sequences", "n", "norm")


def _ungated(layout: Paths) -> Paths:
    return {role: path for role, path in layout.items() if role != "gate"}


def _over_samples(pairs: str) -> dict[str, tuple[str, ...]]:
    """Return Boltz's arguments, where `pairs` are the columns of z."""
    return {
        "s": ("samples", "n", "query"), "z": ("batch", "n", "n", pairs), "mask": ("samples", "n"),
        "k_in": ("samples", "n", "key"), "multiplicity": (),
    }  # fmt: skip


def _over_batches(*condition: str) -> dict[str, tuple[str, ...]]:
    """Return OpenFold3's and Protenix's arguments, where s has the shape `condition`."""
    return {
        "a": ("batch", "n", "query"), "z": ("batch", "n", "n", "pair_norm"), "mask": ("batch", "n"), "s": condition,
    }  # fmt: skip


KINDS = (
    Kind(
        "triangle multiplication",
        layouts=(
            {"norm": "norm_in", "projection": "p_in", "gate": "g_in", "output norm": "norm_out", "output": "p_out",
             "output gate": "g_out"},  # Boltz
            {**_OPENFOLD_MULTIPLICATION, "left projection": "linear_a_p", "right projection": "linear_b_p",
             "left gate": "linear_a_g", "right gate": "linear_b_g"},  # OpenFold, OpenFold3, Protenix
            {**_OPENFOLD_MULTIPLICATION, "projection": "linear_ab_p", "gate": "linear_ab_g"},  # OpenFold's fused one
        ),
        inputs=PAIRS, compute=multiplied, variants=("outgoing", "incoming"), adds_in_place=True,
    ),
    Kind(
        "triangle attention",
        layouts=(
            {"norm": "layer_norm", "edge": "linear", **_MHA},  # Boltz, OpenFold, Protenix
            {"norm": "layer_norm", "edge": "linear_z", **_MHA},  # OpenFold3
        ),
        inputs=PAIRS, compute=triangle, variants=("starting", "ending"),
    ),
    Kind(
        "MSA row attention",
        layouts=({"norm": "layer_norm_m", "pair_norm": "layer_norm_z", "edge": "linear_z", **_MHA},),
        inputs={"m": ALIGNMENT, "z": ("batch", "n", "n", "pair_norm"), "mask": ("batch", "sequences", "n")},
        compute=along_rows,
    ),
    Kind(
        "MSA attention",
        layouts=({"norm": "layer_norm_m", **_MHA},),  # in OpenFold's column attention, which transposes around it
        inputs={"m": ALIGNMENT, "z": (), "mask": ("batch", "sequences", "n")}, compute=along_rows,
    ),
    Kind(
        "attention with pair bias",
        layouts=({**_BOLTZ_PAIR_BIAS, "norm": "norm_s"}, _BOLTZ_PAIR_BIAS),  # with the norm: Boltz-1's trunk
        inputs={**_over_samples("pair_norm"), "model_cache": ()}, compute=over_samples, cache="model_cache",
        any_rank=True, any_dtype=True,
    ),
    Kind(
        "attention with pair bias",
        layouts=(_BOLTZ_HEADS,),  # Boltz-2's diffusion: a layer outside makes z the bias of each head
        inputs=_over_samples("num_heads"), compute=over_samples, any_rank=True, any_dtype=True,
    ),
    Kind(
        "attention with pair bias",
        layouts=(_OPENFOLD3_PAIR_BIAS, _ungated(_OPENFOLD3_PAIR_BIAS), _PROTENIX_PAIR_BIAS),
        inputs=_over_batches(), compute=over_batches, any_rank=True, any_dtype=True,
    ),
    Kind(
        "conditioned attention with pair bias",
        layouts=(_OPENFOLD3_CONDITIONED, _ungated(_OPENFOLD3_CONDITIONED), _PROTENIX_CONDITIONED),
        inputs=_over_batches("batch", "n", "condition norm"), compute=conditioned, any_rank=True, any_dtype=True,
    ),
    Kind(
        "outer product mean",
        layouts=(
            {"norm": "layer_norm", "left": "linear_1", "right": "linear_2", "output": "linear_out"},  # OpenFold's line
            {"norm": "norm", "left": "proj_a", "right": "proj_b", "output": "proj_o"},  # Boltz
        ),
        inputs={"m": ALIGNMENT, "mask": ("batch", "sequences", "n")}, compute=outer_product,
        variants=("with eps", "at least one"),
    ),
    Kind(
        "SwiGLU transition",
        layouts=(
            {"norm": "norm", "gate": "fc1", "up": "fc2", "output": "fc3"},  # Boltz
            {"norm": "layer_norm", "gate": "swiglu.linear_a", "up": "swiglu.linear_b", "output": "linear_out"},
            {"norm": "layernorm1", "gate": "linear_no_bias_a", "up": "linear_no_bias_b", "output": "linear_no_bias"},
        ),
        inputs=PAIRS, compute=swiglu_transition, any_rank=True,
    ),
    Kind(
        "ReLU transition",
        layouts=(
            {"norm": "layer_norm", "expand": "linear_1", "contract": "linear_2"},  # OpenFold
            {"norm": "layer_norm", "expand": "transition_mlp.layers.0.0", "contract": "transition_mlp.linear_out"},
        ),
        inputs=PAIRS, compute=relu_transition, any_rank=True,
    ),
)  # fmt: skip


def example(kind: Kind, widths: dict[str, int], names: list[str], generator: torch.Generator) -> dict[str, Any]:
    """Return random inputs of a kind for a module whose arguments have these names; `widths` has the named sizes.

    Masks have padding, so a row may have nothing to attend to. Two samples share their pairs where a module can.
    """
    multiplicity = 2 if "multiplicity" in names else 1
    sizes = {**widths, "batch": 2, "samples": 2 * multiplicity, "n": 5, "sequences": 3}
    made: dict[str, Any] = {}
    for place, (name, shape) in enumerate(kind.inputs.items()):
        if place and name not in names:
            continue
        lengths = [sizes[one] for one in shape]
        if name == "multiplicity":
            made[name] = multiplicity
        elif not shape:
            made[name] = None
        elif name == "mask":
            exists = torch.ones(lengths)
            exists[0, ..., -2:] = 0
            if lengths[1:2] == lengths[2:3]:
                exists[0, -2:] = 0
            made[name] = exists
        else:
            made[name] = torch.randn(lengths, generator=generator)
    return made
