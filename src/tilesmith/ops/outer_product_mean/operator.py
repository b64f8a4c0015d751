"""The operator: its meaning, its checks, its gradient, its spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.outer_product_mean import few_sequences_backward as few_backward
from tilesmith.ops.outer_product_mean import few_sequences_forward as few
from tilesmith.ops.outer_product_mean import separate_products_forward as separate
from tilesmith.ops.outer_product_mean.backward import Wanted, backward
from tilesmith.ops.outer_product_mean.forward import forward
from tilesmith.ops.runtime.arguments import (
    require_chunk,
    require_floating,
    require_mask,
    require_number,
    require_same_device,
    require_same_dtype,
)
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Alternative, Options
from tilesmith.ops.runtime.precision import tf32_allowed
from tilesmith.spec import Case, Cost, Layout, Spec, Work

NAME = "outer_product_mean"
MOST_CHANNELS = 128  # of each side: a tile holds the outer products of one channel with all others


def reference(
    a: Tensor, b: Tensor, mask: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
    chunk: int | None = None, eps: float = 1e-3,
) -> Tensor:  # fmt: skip
    """Compute `chunk` residues at a time, or all at once."""
    if mask is not None:
        a, b = a.masked_fill(~mask[..., None], 0.0), b.masked_fill(~mask[..., None], 0.0)
    dtype = torch.promote_types(a.dtype, torch.float32)
    present = a.new_ones(a.shape[:3], dtype=dtype) if mask is None else mask.to(dtype)
    count = torch.einsum("bsi,bsj->bij", present, present)
    if chunk is None or chunk >= a.shape[2]:
        return _of_residues(a, b, count, weight, bias, eps)
    parts = [
        _of_residues(of_a, b, of_count, weight, bias, eps)
        for of_a, of_count in zip(a.split(chunk, dim=2), count.split(chunk, dim=1), strict=True)
    ]
    return torch.cat(parts, dim=1)


def _of_residues(
    a: Tensor, b: Tensor, count: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:  # fmt: skip
    """Return the result for all pairs of a's residues with b's."""
    is_absent = count == 0  # no sequence has both residues
    factor = (1 / (eps + count)).masked_fill(is_absent, 0.0)
    outer = torch.einsum("bsic,bsjd->bijcd", a, b)
    mean = (outer * factor[..., None, None]).to(outer.dtype)
    if weight is None:
        return mean.masked_fill(is_absent[..., None, None], 0.0)
    z = mean.flatten(-2) @ weight.to(mean.dtype).t()
    z = z if bias is None else z + (factor[..., None] * bias).to(z.dtype)
    return z.masked_fill(is_absent[..., None], 0.0)


def prepare(*arguments: Any) -> tuple[Any, ...]:
    *others, eps = arguments
    return *others, float(eps), arguments[0].dtype == torch.float32 and tf32_allowed()


def takes(a: Tensor, *_: object) -> bool:
    """Return whether the kernels can compute this call. float64 on a GPU goes to PyTorch: tensor cores do not help."""
    return a.shape[-1] <= MOST_CHANNELS and not (a.is_cuda and a.dtype == torch.float64)


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, mask, weight, bias, context.chunk, context.eps, _ = inputs
    context.save_for_backward(a, b, mask, weight, bias)


def gradient(context: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
    a, b, mask, weight, bias = context.saved_tensors
    to_a, to_b, _, to_weight, to_bias, *_ = map(bool, context.needs_input_grad)
    wanted = Wanted(to_a, to_b, weight is not None and to_weight, bias is not None and to_bias)
    compute = few_backward.backward if few_backward.is_for_few(a, weight) else backward
    found = compute(dz, a, b, mask, weight, bias, context.chunk, context.eps, *wanted)
    da, db, dweight, dbias = (one if is_wanted else None for one, is_wanted in zip(found, wanted, strict=True))
    return da, db, None, dweight, dbias, None, None, None


def has_few_sequences(a: object, b: object, mask: object, weight: object, *_: object) -> bool:
    """Whether the kernels for few sequences compute this call: products must be exact, and take fewer flops so."""
    return isinstance(a, Tensor) and isinstance(weight, Tensor) and few.is_for_few(a, weight)


def has_exact_products(a: object, b: object, mask: object, weight: object, *_: object) -> bool:
    """Whether separate GEMMs compute this call: products must be exact.

    467 sequences, 128 residues, 32 channels, 128 outputs take 250 µs on an H200, with outer products on the chip 1,186,
    in PyTorch 490; 128 and 256 601, 1,234 and 1,052; 512 and 200 793, 3,601 and 1,314.
    """
    return isinstance(a, Tensor) and isinstance(weight, Tensor) and few.is_possible(a, weight)


COMMON = Options(takes=takes, switches=tf32_allowed, autocasts=True)
FEW_SEQUENCES = Alternative(
    when=has_few_sequences, forward=few.forward, save=save, gradient=gradient, prepare=prepare, options=COMMON
)

SEPARATE_PRODUCTS = replace(FEW_SEQUENCES, when=has_exact_products, forward=separate.forward)


@operator(
    NAME, reference=reference, forward=forward, save=save, gradient=gradient, prepare=prepare,
    options=replace(COMMON, alternatives=(FEW_SEQUENCES, SEPARATE_PRODUCTS)),
)  # fmt: skip
def outer_product_mean(
    a: Tensor,
    b: Tensor,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    chunk: int | None = None,
    eps: float = 1e-3,
) -> Tensor:
    """(weight · Σ over sequences of a ⊗ b + bias) / (eps + count), for every pair of residues.

    - a and b are [batch, sequences, residues, channels].
    - `mask`: boolean [batch, sequences, residues], true where there is a residue. Elsewhere a and b count as zeros,
      whatever they hold. The count of a pair is the number of sequences that have both residues. A pair that no
      sequence has gets zeros, whatever a and b hold and at any eps.
    - `weight`: [outputs, channels · channels], as torch.nn.Linear has it, the channel of a counting before that of b;
      the result is [batch, residues, residues, outputs]. Without it the result is the mean itself, [batch, residues,
      residues, channels, channels]. `bias`: [outputs].
    - `chunk`: how many residues' outer products the backward, or PyTorch's version, holds at a time. By default the
      backward holds 64 MiB of them. The forward holds none, except in exact single precision with a weight: as many as
      the backward. With few sequences in exact single precision neither holds any; they hold other products, up to
      128 MiB in the forward and three times as much in the backward.

    Sums are in single precision or better. Products follow PyTorch's setting for tf32.
    """
    tensors = {"a": a, "b": b, **{name: one for name, one in (("weight", weight), ("bias", bias)) if one is not None}}
    require_floating(NAME, **tensors)
    _require_operands(a, b)
    _require_projection(a, weight, bias)
    for name, tensor in tensors.items():
        require_same_dtype(NAME, name, tensor, "a", a)
    require_mask(NAME, mask, tuple(a.shape[:3]), "[batch, sequences, residues]")
    require_same_device(NAME, **tensors, mask=mask)
    require_number(NAME, "eps", eps, at_least=0.0)
    require_chunk(NAME, chunk)
    return a


def _require_operands(a: Tensor, b: Tensor) -> None:
    if a.ndim != 4:
        raise ValueError(
            f"{NAME}: a has shape {tuple(a.shape)}, but must be [batch, sequences, residues, channels]"
        )  # fmt: skip
    if b.shape != a.shape:
        raise ValueError(f"{NAME}: b has shape {tuple(b.shape)}, but a has {tuple(a.shape)}; they must be the same")
    if a.shape[-1] == 0:
        raise ValueError(f"{NAME}: a has no channels (shape {tuple(a.shape)}), but must have at least one")


def _require_projection(a: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    products = a.shape[-1] ** 2
    if weight is None:
        if bias is not None:
            raise ValueError(f"{NAME}: bias is given, but there is no weight to go with it")
        return
    if weight.ndim != 2 or weight.shape[1] != products:
        raise ValueError(
            f"{NAME}: weight has shape {tuple(weight.shape)}, but must have one row for each output and {products} "
            f"columns, one for each pair of the {a.shape[-1]} channels"
        )
    if bias is not None and tuple(bias.shape) != tuple(weight.shape[:1]):
        raise ValueError(
            f"{NAME}: bias has shape {tuple(bias.shape)}, but must be a vector of {weight.shape[0]} elements, "
            "one for each row of weight"
        )


WITHOUT_WEIGHT, WITHOUT_MASK = "mean alone", "one"  # cases


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    def made(*shape: int) -> Tensor:
        return layout(torch.randn(shape, dtype=dtype, device=device))

    operand = case.batch, case.sequences, case.residues, case.channels
    inputs: dict[str, Any] = {"a": made(*operand), "b": made(*operand)}
    place = torch.arange(case.batch * case.sequences * case.residues, device=device)
    inputs["mask"] = None if case.name == WITHOUT_MASK else (place % 3 != 1).view(operand[:3])
    if case.name != WITHOUT_WEIGHT:
        inputs |= {"weight": made(case.outputs, case.channels**2) / case.channels, "bias": made(case.outputs)}
    return {**inputs, "chunk": 2 if case.residues < 16 else None}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    pairs, outer = case.batch * case.residues**2, case.channels**2
    outputs = outer if case.name == WITHOUT_WEIGHT else case.outputs
    projection = 0 if case.name == WITHOUT_WEIGHT else 2 * pairs * outer * case.outputs
    products = 2 * pairs * outer * case.sequences
    operands = 2 * case.batch * case.sequences * case.residues * case.channels * dtype.itemsize
    weight, result = case.outputs * outer * dtype.itemsize, pairs * outputs * dtype.itemsize
    return Cost(
        forward=Work(bytes=operands + weight + result, flops=products + projection),
        # The backward computes the mean again, then two products for each of the forward's.
        backward=Work(bytes=2 * operands + 2 * weight + result, flops=3 * products + 2 * projection),
    )


SPEC = Spec(
    name=NAME,
    op=outer_product_mean,
    reference=reference,
    roundings=3,  # product, projection, mean
    formula="z_ij = (W · Σ_s a_si ⊗ b_sj + bias) / (eps + count_ij)",
    cases=[
        Case("one", sequences=1, batch=1, residues=1, channels=1, outputs=1),
        Case(WITHOUT_WEIGHT, sequences=35, batch=2, residues=2, channels=3, outputs=1),
        Case("odd", sequences=3, batch=2, residues=3, channels=3, outputs=5),
        Case("few", sequences=2, batch=1, residues=9, channels=4, outputs=3),
        Case("crop", sequences=128, batch=1, residues=256, channels=32, outputs=128),
        Case("protein", sequences=512, batch=1, residues=384, channels=32, outputs=128),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
