"""Putting the parts into a model, and taking them out again.

A module is patched by a `forward` of its own, which hides its class's. Classes and modules of transformers stay as they
are, so that of two models in a process one may be patched, and to unpatch is to delete that attribute.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, TypeVar

from torch import nn

from tilesmith.patch.attention import PREFIX, has_mask_registry, registered, saying_that_all_is_there
from tilesmith.patch.families import Family, family_of
from tilesmith.patch.feed_forward import feed_forward
from tilesmith.patch.loss import standard_loss, why_logits, without_logits
from tilesmith.patch.parts import attention_module, calls_rotary, gemma_norm, plain_norm
from tilesmith.patch.positions import has_changing_frequencies, with_kept_tables
from tilesmith.patch.residual import with_joined_norms

Model = TypeVar("Model", bound=nn.Module)

# Attributes of patched modules. They are copied with the module, so that a copy of a patched model can be unpatched.
FORWARD = "_tilesmith_forward"
REPORT = "_tilesmith_report"
ATTENTION = "_tilesmith_attention_before"


@dataclass
class Report:
    """What `patch` has done to a model: how many modules of each part are ours, what is not, and why."""

    model: str
    swapped: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        ours = [f"{part} ({count})" for part, count in self.swapped.items()]
        lines = [f"{self.model}: {', '.join(ours) or 'nothing'} by Tilesmith"]
        return "\n".join(lines + [f"{part} left to transformers: {reason}" for part, reason in self.left.items()])


def patch(
    model: Model,
    *,
    norm: bool = True,
    rotary: bool = True,
    mlp: bool = True,
    loss: bool = True,
    attention: bool = True,
) -> Model:
    """Let Tilesmith's operators compute parts of a Hugging Face model, in place; returns the model.

    - `norm`: every RMSNorm, together with the sum before it where there is one;
    - `rotary`: the rotation of q and k by their positions, in one launch;
    - `mlp`: the feed-forward blocks, which keep less for the backward;
    - `loss`: the loss without logits. In training with labels `logits` is then None; `model(..., skip_logits=False)`
      makes them after all, and `skip_logits=True` leaves them out of evaluation too;
    - `attention`: attention, with padding masks, windows and caches, and the gradients of q, k and v in one sum.

    Parameters and state dict stay as they are. To patch again is to start anew with the parts named then. What cannot
    be swapped in this model is left to transformers; `report(model)` says what and why. Models that are not known are
    refused with a ValueError.
    """
    family = family_of(model)
    unpatch(model)
    done = Report(type(model).__name__)
    if norm:
        _patch_norms(model, family, done)
    _patch_attention_modules(model, family, done, rotary=rotary, attention=attention)
    if mlp:
        _patch_mlps(model, family, done)
    if loss:
        _patch_loss(model, family, done)
    if attention:
        _patch_attention(model, family, done)
    setattr(model, REPORT, done)
    return model


def unpatch(model: Model) -> Model:
    """Undo `patch`, in place; returns the model. A model that is not patched stays as it is."""
    _require_module("unpatch", model)
    patched = [module for module in model.modules() if FORWARD in vars(module)]
    for module in patched:
        if vars(module).get("forward") is not vars(module)[FORWARD]:
            raise RuntimeError(
                f"unpatch: something has replaced the forward of a {type(module).__name__} since it was patched; "
                "undo that first"
            )
    for module in patched:
        del module.forward
        delattr(module, FORWARD)
    before = vars(model).get(ATTENTION)
    if before is not None:
        delattr(model, ATTENTION)
        config: Any = model.config
        if config._attn_implementation.startswith(PREFIX):  # else it was set anew since, which stays
            config._attn_implementation = before
    if REPORT in vars(model):
        delattr(model, REPORT)
    return model


def report(model: nn.Module) -> Report | None:
    """What `patch` has done to the model; None where it is not patched."""
    _require_module("report", model)
    found: Report | None = vars(model).get(REPORT)
    return found


def _require_module(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model is a {type(model).__name__}, but must be a torch.nn.Module")


def _patch_norms(model: nn.Module, family: Family, done: Report) -> None:
    ours = gemma_norm if family.gemma_norm else plain_norm
    _swap_all(model, family.of("RMSNorm"), ours, "norm", done)
    layer = family.of("DecoderLayer")
    joined = with_joined_norms(layer.forward)
    if joined is not None:
        _swap(_unchanged(model, layer), joined)


def _patch_attention_modules(model: nn.Module, family: Family, done: Report, *, rotary: bool, attention: bool) -> None:
    kind = family.of("Attention")
    if rotary and not calls_rotary(kind.forward):
        rotary = False
        done.left["rotary"] = f"{kind.__name__} of this transformers release turns q and k in a way that is not known"
    ours = attention_module(kind.forward, rotary, attention and has_mask_registry())
    if rotary:
        assert ours is not None
        _swap_all(model, kind, ours, "rotary", done)
        tables = family.of("RotaryEmbedding")
        steady = [one for one in _unchanged(model, tables) if not has_changing_frequencies(one)]
        _swap(steady, with_kept_tables(tables.forward))
    elif ours is not None:
        _swap(_unchanged(model, kind), ours)


def _patch_mlps(model: nn.Module, family: Family, done: Report) -> None:
    activation = getattr(model.config, "hidden_activation", None) or getattr(model.config, "hidden_act", None)
    if activation in ("silu", "swish"):
        _swap_all(model, family.of("MLP"), feed_forward, "mlp", done)
    else:
        done.left["mlp"] = f"the activation is {activation}, and the operators have silu only"


def _patch_loss(model: nn.Module, family: Family, done: Report) -> None:
    if not isinstance(model, family.of("ForCausalLM")):
        done.left["loss"] = f"{type(model).__name__} has no loss over a vocabulary"
        return
    reason = why_logits(model, standard_loss())
    if reason is not None:
        done.left["loss"] = reason
    else:
        kind = family.of("ForCausalLM")
        _swap_all(model, kind, without_logits(kind.forward), "loss", done)


def _patch_attention(model: nn.Module, family: Family, done: Report) -> None:
    if not has_mask_registry():
        done.left["attention"] = "transformers before 4.53 has no registry for masks"
        return
    before = model.config
    config: Any = copy.copy(before)  # other models may have been made from the same one
    setattr(model, ATTENTION, config._attn_implementation)
    for module in model.modules():
        if getattr(module, "config", None) is before:
            module.config = config
    config._attn_implementation = registered(family, config)
    decoder = family.of(family.decoder)
    _swap_all(model, decoder, saying_that_all_is_there(decoder.forward), "attention", done)
    done.swapped["attention"] = sum(isinstance(module, family.of("Attention")) for module in model.modules())


def _swap_all(model: nn.Module, kind: type[nn.Module], ours: Callable[..., Any], part: str, done: Report) -> None:
    """Give every module of a class our forward, unless it has one that is not transformers' own, and report it."""
    modules = [module for module in model.modules() if isinstance(module, kind)]
    unchanged = _unchanged(model, kind)
    _swap(unchanged, ours)
    if unchanged:
        done.swapped[part] = len(unchanged)
    if len(unchanged) < len(modules):
        done.left[part] = f"{len(modules) - len(unchanged)} of {len(modules)} modules have a forward of their own"


def _unchanged(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    """The modules of a class whose forward is transformers' own."""
    modules = (module for module in model.modules() if isinstance(module, kind))
    return [module for module in modules if type(module).forward is kind.forward and "forward" not in vars(module)]


def _swap(modules: Sequence[nn.Module], ours: Callable[..., Any]) -> None:
    for module in modules:
        method = MethodType(ours, module)
        setattr(module, FORWARD, method)
        setattr(module, "forward", method)  # noqa: B010  # mypy lets no method be assigned to
