"""Putting the parts into a model, and taking them out again.

`patch` gives a module its own `forward`, which hides the method of its class. Classes of transformers stay unchanged,
so a patched and an unpatched model can live in one process, and `unpatch` only deletes that attribute.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from tilesmith.arguments import FLAG, require_all
from tilesmith.patch.families import Family, family_of
from tilesmith.patch.gradients.tied_embedding import scale_of, under_head
from tilesmith.patch.own_forward import FORWARD, give_forward, remove_forward
from tilesmith.patch.parts.attention_module import (
    PROJECTIONS,
    QK_NORM,
    attention_forward,
    has_one_layer,
    require_projection,
    require_qk_norm,
    rotation_of,
)
from tilesmith.patch.parts.attention_module import rotary as rotary_of_halves
from tilesmith.patch.parts.attention_registry import (
    PREFIX,
    REGISTRY,
    has_mask_registry,
    register_attention,
    require_known_attention,
    why_fallback,
)
from tilesmith.patch.parts.decoder import counts_from_zero, options_reach_attention, with_default_positions
from tilesmith.patch.parts.default_positions import why_tables_change, with_kept_tables
from tilesmith.patch.parts.feed_forward import block_forward, recognised_block
from tilesmith.patch.parts.hand_written import left_in, looks_like_block, rotates
from tilesmith.patch.parts.loss import require_known_loss, standard_loss, why_logits, without_logits
from tilesmith.patch.parts.masked_loss import masked_without_logits
from tilesmith.patch.parts.norms import is_named_norm, looks_like_norm, norm_form, norm_forward, settings_of
from tilesmith.patch.parts.residual import layers_with_norms, norms_follow_branches, with_fused_residual
from tilesmith.patch.parts.trials import has_same_loss
from tilesmith.patch.report import Report, Swapped, UnknownCodeError
from tilesmith.patch.rewriting import names_in
from tilesmith.patch.usual_modes import in_usual_modes

Model = TypeVar("Model", bound=nn.Module)

# Attributes of patched modules. They are copied with the module, so a copy of a patched model can be unpatched.
REPORT = "_tilesmith_report"
ATTENTION = "_tilesmith_attention_before"


def patch(
    model: Model, *, norm: bool = True, rotary: bool = True, mlp: bool = True, loss: bool = True, attention: bool = True
) -> Model:
    """Run parts of a Hugging Face model on Tilesmith's operators, in place; return the model.

    - `norm`: every RMSNorm, fused with the addition before it where there is one;
    - `rotary`: the rotation of q and k by their positions, in one launch;
    - `mlp`: the feed-forward blocks, which keep less for the backward;
    - `loss`: the loss without logits. In training with labels `logits` is then None. `model(..., skip_logits=False)`
      computes the logits anyway, and `skip_logits=True` omits them in evaluation too;
    - `attention`: attention, with padding masks, windows and caches, and the gradients of q, k and v in one sum.

    Parameters and state dict stay unchanged. Patching a patched model starts again with the parts named in the new
    call. `report(model)` lists the parts and fusions that were made, and the reason for each one that was not. Where
    the installed transformers is written differently from what Tilesmith knows, `patch` also logs a warning. A model
    of a family without an entry in `families.py` is patched where its modules are recognised by structure, and a model
    that is not transformers' own in its norms and feed-forward blocks. A model without any of these, and a wrapper
    around a model, raise a ValueError.
    """
    wanted = {"norm": norm, "rotary": rotary, "mlp": mlp, "loss": loss, "attention": attention}
    require_all("patch", dict.fromkeys(wanted, FLAG), **wanted)
    family = family_of(model)
    unpatch(model)
    done = Report(type(model).__name__, foreign=family.foreign)
    with in_usual_modes():
        if family.foreign:
            return _patch_foreign(model, done, {name for name, one in wanted.items() if one})
        if norm:
            with done.part("norm"):
                _patch_norms(model, family, done)
        with done.part("rotary" if rotary else "attention"):
            _patch_attention_modules(model, family, done, rotary=rotary, attention=attention)
        if mlp:
            with done.part("mlp"):
                _patch_feed_forward_blocks(model, family, done)
        if loss:
            with done.part("loss"):
                _patch_loss(model, family, done)
        if attention:
            with done.part("attention"):
                _patch_attention(model, family, done)
    setattr(model, REPORT, done)
    done.warn()
    return model


def _patch_foreign(model: Model, done: Report, wanted: set[str]) -> Model:
    """Patch the norms and feed-forward blocks of a model that is not transformers' own."""
    if "norm" in wanted:
        done.record_part("norm", _swap_tried_norms(model))
    if "mlp" in wanted:
        done.record_part("mlp", _swap_recognised_blocks(model))
    done.left |= {part: reason for part, reason in left_in(model).items() if part in wanted}
    if wanted & {"norm", "mlp"} and not done.swapped:
        raise ValueError(
            f"patch: model is a {type(model).__name__}, which is not a model of transformers "
            "and has no norm or feed-forward block that Tilesmith recognises; "
            "in a model of your own, use the modules of tilesmith.nn"
        )
    setattr(model, REPORT, done)
    return model


def unpatch(model: Model) -> Model:
    """Undo `patch`, in place; return the model. A model that is not patched stays unchanged."""
    require_module("unpatch", model)
    patched = [module for module in model.modules() if FORWARD in vars(module)]
    for module in patched:
        if vars(module).get("forward") is not vars(module)[FORWARD]:
            raise RuntimeError(
                f"unpatch: other code replaced the forward of a {type(module).__name__} after patch; undo that first"
            )
    for module in patched:
        remove_forward(module)
    for config, before in vars(model).get(ATTENTION, ()):
        if config._attn_implementation.startswith(PREFIX):  # else the user set another one, which stays
            config._attn_implementation = before
    if ATTENTION in vars(model):
        delattr(model, ATTENTION)
    if REPORT in vars(model):
        delattr(model, REPORT)
    return model


def report(model: nn.Module) -> Any:
    """Return what `patch` or `fold` did to the model, or None for a model that is not patched."""
    require_module("report", model)
    return vars(model).get(REPORT)


def require_module(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model is a {type(model).__name__}, but must be a torch.nn.Module")


def _patch_norms(model: nn.Module, family: Family, done: Report) -> None:
    if family.tried:
        swapped = _swap_tried_norms(model)
        done.record_part("norm", swapped if any(swapped) else Swapped(0, "no modules look like a norm"))
    else:
        kind = family.of("RMSNorm")
        done.record_part("norm", _swap(model, kind, norm_forward(kind.forward, family.gemma_norm)))
    with done.fusion("residual"):
        layers = layers_with_norms(model)
        before = [layer for layer in layers if not norms_follow_branches(layer.forward)]
        if not before:
            reason = "the norms follow the branches" if layers else "no layer holds a norm with a weight itself"
            done.record_fusion("residual", Swapped(0, reason))
        for layer in before:
            done.record_fusion("residual", _swap(model, layer, with_fused_residual(layer.forward, family.tried)))


def _swap_tried_norms(model: nn.Module) -> Swapped:
    """Give every norm the forward of the form that computes the same; norms of one class may have several forms."""
    given: list[nn.Module] = []
    skipped: dict[nn.Module, str] = {}
    forms: dict[Any, Callable[..., Any] | None] = {}
    for norm in model.modules():
        kind = settings_of(norm) if looks_like_norm(norm) else None
        if kind is not None and kind not in forms:
            forms[kind] = norm_form(norm)
        form = forms.get(kind)
        if form is not None and "forward" not in vars(norm):
            give_forward(norm, form)
            given.append(norm)
        elif form is not None:
            skipped[norm] = "have a forward of their own"
        elif is_named_norm(norm) or (kind is not None and list(norm.parameters())):
            skipped[norm] = "compute something else than RMSNorm or layer norm with a fixed epsilon"
    return Swapped(len(given), _counted_by_class(given, skipped))


def has_own_forward(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module's forward is not that of the class."""
    return type(module).forward is not kind.forward or "forward" in vars(module)


def _norms_span_heads(model: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether the norms of q and k in attention modules are over all heads together."""
    module: Any = next((module for module in model.modules() if isinstance(module, kind)), None)
    weight = getattr(getattr(module, "q_norm", None), "weight", None)
    if weight is None:
        raise UnknownCodeError(f"{kind.__name__} has no weight for a norm of q")
    return bool(weight.shape[0] != module.head_dim)


def _patch_attention_modules(model: nn.Module, family: Family, done: Report, *, rotary: bool, attention: bool) -> None:
    """Swap what attention modules compute around attention: rotary positions and projections."""
    if not rotary and not attention:
        return
    kind = family.of(family.attention)
    projections: list[str] = []
    for name in PROJECTIONS if attention and has_mask_registry() else ():
        if name == "qkv projections" and has_one_layer(kind.forward):
            continue
        if name == "output projection" and not family.projects:
            continue
        with done.fusion(name):
            require_projection(kind.forward, name)
            projections.append(name)
    has_rotation = family.rotates and not getattr(model.config, "alibi", False)
    has_rotation = has_rotation and (family.known or any(rotates(module) for module in model.modules()))
    rotation = rotation_of(model, family, kind.forward) if rotary and has_rotation else None
    if rotation is rotary_of_halves and "q_norm" in names_in(kind.forward):
        with done.fusion(QK_NORM):
            if _norms_span_heads(model, kind):
                done.record_fusion(QK_NORM, Swapped(0, "a norm spans all heads"))
            else:
                require_qk_norm(kind.forward)
                projections.append(QK_NORM)
    if rotation is not None or projections:
        swapped = _swap(model, kind, attention_forward(kind.forward, rotation, tuple(projections)))
        for name in projections:
            done.record_fusion(name, swapped)
    if rotation is not None:
        done.record_part("rotary", swapped)
        with done.fusion("rotary tables"):
            tables = family.of(family.tables)
            kept = _swap(model, tables, with_kept_tables(tables.forward), why_tables_change)
            done.record_fusion("rotary tables", kept)
    elif rotary and not has_rotation:
        done.left["rotary"] = f"{kind.__name__} does not rotate q and k"
    elif rotary:
        raise UnknownCodeError.of(kind.forward)


def _swap_recognised_blocks(model: nn.Module) -> Swapped:
    """Give our forward to every module that computes a feed-forward block, whatever its names."""
    given: list[nn.Module] = []
    skipped: dict[nn.Module, str] = {}
    for module in model.modules():
        own = "forward" in vars(module)
        ours = None if own else recognised_block(module)
        if ours is not None:
            give_forward(module, ours)
            given.append(module)
        elif looks_like_block(module):
            other = "compute something else than a feed-forward block with SiLU or GELU"
            skipped[module] = "have a forward of their own" if own else other
    return Swapped(len(given), _counted_by_class(given, skipped))


def _patch_feed_forward_blocks(model: nn.Module, family: Family, done: Report) -> None:
    try:
        _patch_named_blocks(model, family, done)
    except UnknownCodeError:
        swapped = Swapped(0, None) if family.known else _swap_recognised_blocks(model)
        if not swapped.modules:
            raise
        done.record_part("mlp", swapped)


def _patch_named_blocks(model: nn.Module, family: Family, done: Report) -> None:
    if not family.mlp:
        reason = "blocks are mixtures of experts" if family.experts else "a block is no module of its own"
        done.left["mlp"] = reason
        return
    kind = family.of(family.mlp)
    blocks = [module for module in model.modules() if isinstance(module, kind)]
    if not blocks:
        done.left["mlp"] = f"{type(model).__name__} has no {kind.__name__}"
        return
    count, reasons = 0, Counter[str]()
    for block in blocks:  # blocks of one class may have several activations
        if has_own_forward(block, kind):
            reasons["have a forward of their own"] += 1
            continue
        ours = block_forward(kind.forward, block)
        if isinstance(ours, str):
            reasons[ours] += 1
            continue
        give_forward(block, ours)
        count += 1
    done.record_part("mlp", Swapped(count, _counted(kind, len(blocks), reasons)))


def _patch_loss(model: nn.Module, family: Family, done: Report) -> None:
    causal: Any = model
    is_known_head = family.known or hasattr(family.modeling, family.prefix + family.head)
    kind: Any = family.of(family.head) if is_known_head else ()
    if not isinstance(model, kind):
        has_head = causal.get_output_embeddings() is not None
        unknown = f"Tilesmith does not know the loss of {type(model).__name__}"
        done.left["loss"] = unknown if has_head else f"{type(model).__name__} has no loss over a vocabulary"
        return
    if family.masked is not None:
        done.record_part("loss", _swap(model, kind, masked_without_logits(kind.forward, *family.masked)))
        return
    require_known_loss(kind.forward, under_head(model), family.known)
    reason = why_logits(model, standard_loss())
    if reason is not None:
        done.left["loss"] = reason
        return
    ours = without_logits(kind.forward, family.known)
    if family.tried and not has_same_loss(without_logits(kind.forward, False), kind.forward, model):
        raise UnknownCodeError(f"{kind.__name__} computes its logits in another way")
    done.record_part("loss", _swap(model, kind, ours))
    embedding = causal.get_input_embeddings()
    if embedding.weight is causal.lm_head.weight:
        reason = None
        if not family.known:
            reason = f"{type(model).__name__} is of an unknown family, whose decoder may read the tokens"
        elif scale_of(embedding) is None:
            reason = f"{type(embedding).__name__} is more than torch's own embedding"
        done.record_fusion("tied embedding", Swapped(int(reason is None), reason))


def _patch_attention(model: nn.Module, family: Family, done: Report) -> None:
    if not has_mask_registry():
        done.left["attention"] = "transformers before 4.53 has no registry for masks"
        return
    kind = family.of(family.attention)
    if REGISTRY not in names_in(kind.forward):
        raise UnknownCodeError.of(kind.forward)
    attending: list[Any] = [module for module in model.modules() if isinstance(module, kind)]
    if not attending:
        done.left["attention"] = f"{type(model).__name__} has no {kind.__name__}"
        return
    if not family.known:
        require_known_attention(family, attending[0], family.of(family.decoder))
    changed = []
    for before in {id(module.config): module.config for module in attending}.values():
        config: Any = copy.copy(before)  # other models may share the configuration
        changed.append((config, config._attn_implementation))
        for module in model.modules():
            if getattr(module, "config", None) is before:
                module.config = config
        config._attn_implementation = register_attention(family, config)
    setattr(model, ATTENTION, changed)
    reason = next((why for module in attending if (why := why_fallback(module))), None)
    done.record_part("attention", Swapped(0 if reason else len(attending), reason))
    with done.fusion("default positions"):
        decoder = family.of(family.decoder)
        takes_positions = "position_ids" in inspect.signature(decoder.forward).parameters
        has_decoder = any(isinstance(module, decoder) for module in model.modules())
        if not family.known and not (takes_positions and has_decoder):
            return
        if not family.known and not counts_from_zero(decoder.forward):
            raise UnknownCodeError.of(decoder.forward)
        reach = options_reach_attention(model, decoder, kind)
        done.record_fusion("default positions", _swap(model, decoder, with_default_positions(decoder.forward, reach)))


def _swap(
    model: nn.Module,
    kind: type[nn.Module],
    ours: Callable[..., Any],
    why_not: Callable[[Any], str | None] = lambda module: None,
) -> Swapped:
    """Give the modules of a class our forward; skip those with their own forward, and those that `why_not` rejects."""
    count, reasons = 0, Counter[str]()
    for module in model.modules():
        if not isinstance(module, kind):
            continue
        reason = "have a forward of their own" if has_own_forward(module, kind) else why_not(module)
        if reason is not None:
            reasons[reason] += 1
            continue
        count += 1
        give_forward(module, ours)
    return Swapped(count, _counted(kind, count + reasons.total(), reasons))


def _counted(kind: type[nn.Module], total: int, reasons: Counter[str]) -> str | None:
    """Return in words how many of all modules of a class were not swapped, and why; None where all were."""
    skipped = [f"{number} of {total} {kind.__name__} modules {reason}" for reason, number in reasons.items()]
    return ", ".join(skipped) or None


def _counted_by_class(given: list[nn.Module], skipped: dict[nn.Module, str]) -> str | None:
    """Return `_counted` for modules of several classes."""
    totals = Counter(type(module) for module in (*given, *skipped))
    reasons = [
        _counted(kind, totals[kind], Counter(why for one, why in skipped.items() if type(one) is kind))
        for kind in totals
    ]
    return ", ".join(filter(None, reasons)) or None
