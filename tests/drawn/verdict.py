"""One drawn call: right, wrong, refused with a clear sentence, or an internal error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
import tilesmith.fold
from drawn import attention_calls, attention_references, calls, references
from drawn.values import Draw
from tilesmith.spec import Inputs

CALLS = calls.CALLS | attention_calls.CALLS
REFERENCES = references.REFERENCES | attention_references.REFERENCES
# In units of the dtype's precision, relative to the largest element: what rounding alone does to small problems.
ROUNDINGS = 12
# Where rounding does more, the reference itself says how much: all that it computes varies by this many units.
VARIED = 2
VARIATIONS = 8
SPREADS = 4  # how many times the largest of these variations is allowed: kernels also round what they keep, as lse
PLAIN = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # what kernels compute in, by the tensors' dtype
EXACT = frozenset({"max_pool2d", "transpose"})  # these copy elements, and may not vary them
# Whether a gradient passes a ReLU at NaN is a convention, and so is zero times NaN in the gradient of a weight.
ONLY_FINITE_GRADIENTS = frozenset({"transition", "rms_norm_relu", "matmul", "attention_update", "triangle_multiply",
                                   "fold.triangle_multiplicative_update", "fold.attention_pair_bias"})  # fmt: skip
# These apply a weight to one factor first: a sum of infinities of both signs, NaN, may become one infinity. Where a
# mean is too large for the dtype, so that the projection of the mean is infinite in PyTorch, it may be infinite too.
REASSOCIATED = frozenset({"outer_product_mean"})
# Where variations change a result by this many units, terms cancel. Kernels that compute part of the forward again in
# the backward round it in another way there, so that less cancels: as many more spreads are allowed.
ILL_CONDITIONED = 1000
SPREADS_OF_CANCELLED = 32
Results = dict[str, Tensor | None]


@dataclass(frozen=True)
class Verdict:
    """What became of one call. `kind` is "right", "wrong", "refused" or "error"."""

    kind: str
    text: str = ""


def operator_named(name: str) -> Callable[..., Any]:
    room: Any = ts.fold if name.startswith("fold.") else ts.ops
    found: Callable[..., Any] = getattr(room, name.removeprefix("fold."))
    return found


def judged(name: str, choose: Callable[[Sequence[Any]], Any], route: str | None = None) -> Verdict:
    """Draw one call of an operator, compute it on a drawn route, and compare results and gradients."""
    draw = Draw(choose, route)
    inputs = CALLS[name](draw)
    is_float8 = any(isinstance(value, Tensor) and value.dtype.itemsize == 1 and value.is_floating_point()
                    for value in inputs.values())  # fmt: skip
    wanted = [key for key, value in inputs.items() if _is_floating(value) and draw.one_of((True, True, False))]
    wanted = [] if is_float8 else wanted  # products of float8 have no gradient
    cotangents: list[Tensor] = []
    call = f"{name} ({draw.route}) {described(inputs, wanted)}"
    try:
        with ts.use(draw.route), _nan_in_new_memory():  # type: ignore[arg-type]  # drawn
            found = _computed(operator_named(name), inputs, wanted, cotangents, draw)
    except (TypeError, ValueError) as refusal:
        if is_clear(name, str(refusal), inputs):
            return Verdict("refused", f"{call}: {refusal}")
        return Verdict("error", f"{call}: {type(refusal).__name__}: {refusal}")
    except Exception as error:
        return Verdict("error", f"{call}: {type(error).__name__}: {error}")
    problem = next(_differences(name, inputs, wanted, cotangents, found), None)
    return Verdict("wrong", f"{call}: {problem}") if problem else Verdict("right", call)


@contextmanager
def _nan_in_new_memory() -> Iterator[None]:
    """Fill every `torch.empty` with NaN: a result that nothing writes is wrong, not right by luck."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def is_clear(name: str, text: str, inputs: Inputs) -> bool:
    """Return whether an error is one sentence that names operator and argument."""
    short = name.removeprefix("fold.")
    return text.startswith(f"{short}: ") and "\n" not in text and any(argument in text for argument in inputs)


def described(inputs: Inputs, wanted: Sequence[str]) -> str:
    """Return the call's arguments in one line."""
    parts = []
    for key, value in inputs.items():
        if isinstance(value, Tensor):
            shape = "×".join(map(str, value.shape)) or "no dimensions"
            mark = "*" if key in wanted else ""
            parts.append(f"{key}{mark}={str(value.dtype).removeprefix('torch.')}[{shape}]{tuple(value.stride())}")
        elif value is not None:
            parts.append(f"{key}={value}")
    return ", ".join(parts)


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize > 1


def _computed(
    function: Callable[..., Any], inputs: Inputs, wanted: Sequence[str], cotangents: list[Tensor], draw: Draw | None
) -> Results:  # fmt: skip
    """Return outputs and gradients. Draws the cotangents where there are none."""
    leaves = {key: value.detach().requires_grad_(key in wanted) if _is_floating(value) else value
              for key, value in inputs.items()}  # fmt: skip
    made = function(**leaves)
    outputs = [made] if isinstance(made, Tensor) else [one for one in made if one is not None]
    if draw is not None:
        cotangents += [draw.laid_out(torch.randn(one.shape, generator=draw.random).to(one.dtype)) for one in outputs]
    both = [(one, its.to(one.dtype)) for one, its in zip(outputs, cotangents, strict=True) if one.requires_grad]
    if both:
        torch.autograd.backward([one for one, _ in both], [its for _, its in both])
    results: Results = {f"output {number}": one.detach() for number, one in enumerate(outputs)}
    return results | {f"gradient of {key}": leaves[key].grad for key in wanted}


def _differences(
    name: str, inputs: Inputs, wanted: Sequence[str], cotangents: list[Tensor], found: Results
) -> Iterator[str]:  # fmt: skip
    """Yield what is wrong. Looks closer, at what rounding may do, only where a result is far from exact."""
    exact = _evaluated(name, inputs, wanted, cotangents, torch.float64)
    closer: list[Results] | None = None
    for what, right in exact.items():
        ours = found[what]
        if ours is None and right is not None and right.ne(0).any():
            yield f"{what} is missing"
            continue
        if ours is None:
            continue
        right = torch.zeros_like(ours, dtype=torch.float64) if right is None else right
        if ours.shape != right.shape:
            yield f"{what} has shape {tuple(ours.shape)}, not {tuple(right.shape)}"
            continue
        if what.startswith("gradient") and not _all_finite(inputs):
            if name in ONLY_FINITE_GRADIENTS:
                continue
            # There is no derivative at infinity: NaN may be any number, and an infinity NaN.
            is_any = right.isnan() | (right.isinf() & ~ours.isfinite())
            ours = torch.where(is_any, right.to(ours.dtype), ours)
        if bool(_apart(ours, right, _precision(inputs, ours) * ROUNDINGS * _largest(right)).any()):
            closer = closer or _variations(name, inputs, wanted, cotangents)
            if name in REASSOCIATED:
                ours = ours.masked_fill(right.isnan() & ~ours.isfinite(), torch.nan)
                own = _evaluated(name, inputs, wanted, cotangents, ours.dtype)[what]
                if own is not None:
                    ours = torch.where(ours.isfinite() | own.isfinite(), ours, right.to(ours.dtype))
            precision = _precision(inputs, ours)
            computed = {PLAIN.get(one.dtype, one.dtype) for one in inputs.values() if _is_floating(one)}
            unit = max(torch.finfo(dtype).eps for dtype in computed)
            of_lse = unit if what.startswith("gradient") else 0.0  # only the backward reads lse
            with references.rounded_mean(unit), attention_references.rounded_lse(of_lse):
                rounded = _evaluated(name, inputs, wanted, cotangents, torch.float64)[what]
            kept = SPREADS * _distance(rounded, right)
            problem = _wrong_even_so(ours, right, [one[what] for one in closer], precision, kept)
            if problem:
                yield f"{what}: {problem}"


def _precision(inputs: Inputs, result: Tensor) -> float:
    """Return the coarsest precision among the inputs and a result."""
    floating = [value.dtype for value in inputs.values() if _is_floating(value)]
    return max(torch.finfo(dtype).eps for dtype in (*floating, result.dtype))


def _all_finite(inputs: Inputs) -> bool:
    return all(bool(value.isfinite().all()) for value in inputs.values() if _is_floating(value))


def _largest(right: Tensor) -> float:
    finite = right[right.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def _apart(ours: Tensor, right: Tensor, allowed: float) -> Tensor:
    """Return where two tensors differ by more than allowed; NaN and infinities must be the same."""
    rounded = right.to(ours.dtype).double()  # too large for the dtype is infinite
    exact = ours.detach().double()
    overflows = right.isfinite() & ~rounded.isfinite()
    same = (exact == rounded) | (exact.isnan() & right.isnan()) | (overflows & ~exact.isfinite())
    return ~same & ~((exact - right).abs() <= max(allowed, torch.finfo(ours.dtype).tiny))


def _evaluated(
    name: str, inputs: Inputs, wanted: Sequence[str], cotangents: list[Tensor], dtype: torch.dtype | None
) -> Results:  # fmt: skip
    """Return results and gradients of the reference, in a dtype, or in the precision that kernels compute in."""

    def converted(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value.detach().to(dtype or PLAIN.get(value.dtype, value.dtype))

    named = {key: converted(value) for key, value in inputs.items()}
    return _computed(REFERENCES[name], named, wanted, [converted(one) for one in cotangents], None)


def _variations(name: str, inputs: Inputs, wanted: Sequence[str], cotangents: list[Tensor]) -> list[Results]:
    """Return the reference in the kernels' own precision, and with varied last digits of all that it computes."""
    made = [_evaluated(name, inputs, wanted, cotangents, None)]
    if name not in EXACT:
        dtypes = [torch.finfo(one.dtype) for one in inputs.values() if _is_floating(one)]
        unit = VARIED * max(dtype.eps for dtype in dtypes)
        least = max(dtype.smallest_normal * dtype.eps for dtype in dtypes)
        for draw in range(VARIATIONS):
            with _Varied(unit, least, draw):
                made.append(_evaluated(name, inputs, wanted, cotangents, torch.float64))
    return made


class _Varied(TorchDispatchMode):
    """Changes the last digits of every result, forward and backward, by no less than the least number there is.

    A number below the least one rounds to zero, where a rectifier has another derivative.
    """

    def __init__(self, unit: float, least: float, draw: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self._unit, self._least, self._random = unit, least, torch.Generator().manual_seed(draw)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        is_new = all(one.alias_info is None for one in function._schema.returns)
        if isinstance(made, Tensor) and made.is_floating_point() and is_new:
            noise = torch.randn(made.shape, generator=self._random, dtype=made.dtype)
            return torch.where(made == 0, made, made * (1 + self._unit * noise) + self._least * noise)
        return made


def _distance(one: Tensor | None, right: Tensor) -> float:
    """Return the largest difference among finite elements."""
    one = torch.zeros_like(right) if one is None else one.double()
    both = one.isfinite() & right.isfinite()
    return (one - right)[both].abs().max().item() if bool(both.any()) else 0.0


def _wrong_even_so(
    ours: Tensor, right: Tensor, closer: Sequence[Tensor | None], precision: float, kept: float
) -> str:  # fmt: skip
    """Return what is wrong with a result even where the reference varies; nothing where rounding explains it.

    `kept` is allowed besides: what the rounding of lse and of a norm's mean does.
    """
    others = [one.double() if one is not None else torch.zeros_like(right) for one in closer]
    uncertain = torch.zeros_like(right, dtype=torch.bool)  # NaN or infinite in some variations
    spread = 0.0
    for one in others:
        unlike = (one.isfinite() != right.isfinite()) | (one.isnan() != right.isnan())
        uncertain |= unlike | (one.to(ours.dtype).isfinite() != right.to(ours.dtype).isfinite())
        spread = max(spread, _distance(one, right))
    unit = precision * _largest(right)
    allowed = kept + ROUNDINGS * unit + (SPREADS if spread < ILL_CONDITIONED * unit else SPREADS_OF_CANCELLED) * spread
    uncertain |= right.abs() + allowed > torch.finfo(ours.dtype).max
    apart = _apart(ours, right, allowed)
    if not bool((apart & ~uncertain).any()):
        return ""
    place = tuple((apart & ~uncertain).nonzero()[0].tolist())
    return f"{ours[place].item():.9g} at {place}, not {right[place].item():.9g}; allowed {allowed:.1e}"
