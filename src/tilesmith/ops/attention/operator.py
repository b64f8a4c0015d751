"""The operator: what users call, its checks, who computes it, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.attention.forms import plan_backward, plan_forward
from tilesmith.ops.attention.masks import require_mask, with_simple_mask
from tilesmith.ops.attention.problem import Problem, lse_shape
from tilesmith.ops.attention.reference import UNBOUNDED, AttentionOptions, bounds, default_scale, reference, seed_tensor
from tilesmith.ops.runtime.arguments import (
    dtype_name,
    require_floating,
    require_number,
    require_positive,
    require_same_device,
    require_same_dtype,
)
from tilesmith.ops.runtime.kernels import is_transformed, kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import tf32_allowed

LARGEST_HEAD = 256  # wider tiles exceed shared memory and registers
LARGEST_EXACT_HEAD = 64
# PyTorch keeps plans of cuDNN's for every shape, 4.3 MB for forward and backward, and frees none of them.
MOST_SHAPES_BY_TORCH = 128


class Numbers(NamedTuple):
    """The arguments of the kernels that are no tensors, in the order of their schemas."""

    left: int
    right: int
    scale: float | None
    softcap: float
    dropout: float
    tf32: bool

    @staticmethod
    def of(q: Tensor, causal: bool, options: AttentionOptions) -> Numbers:
        """Return the numbers for a user's options."""
        scale = None if options.scale is None else float(options.scale)
        tf32 = tf32_allowed() and q.dtype == torch.float32
        return Numbers(*bounds(causal, options.window), scale, float(options.softcap), float(options.dropout), tf32)

    def for_head(self, head_size: int) -> dict[str, Any]:
        """Return the numbers by name, with the default scale if none is given."""
        return self._replace(scale=default_scale(head_size, self.scale))._asdict()


@kernels("attention_forward")
def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, seed: Tensor | None,
    left: int, right: int, scale: float | None, softcap: float, dropout: float, tf32: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output, and log₂ Σ 2^score of each query."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    return torch.empty_like(q), torch.empty(lse_shape(q.shape), dtype=dtype, device=q.device)


@forward.plan
def plan_output(plan: Plan, *arguments: Any) -> tuple[Operand, ...]:
    return plan_forward(dense_problem(plan, *arguments))


def dense_problem(
    plan: Plan, q: Operand, k: Operand, v: Operand, bias: Operand | None, mask: Operand | None, seed: Operand | None,
    *numbers: Any,
) -> Problem:  # fmt: skip
    """Return the problem of a call. The numbers are those of `Numbers`."""
    return Problem(plan, q, k, v, bias, mask, seed, **Numbers(*numbers).for_head(q.shape[-1]))


@kernels("attention_backward")
def backward(
    doutput: Tensor, output: Tensor, lse: Tensor, bias_gradient: bool,
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, seed: Tensor | None,
    left: int, right: int, scale: float | None, softcap: float, dropout: float, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk, dv and dbias; dbias is empty where it is not wanted."""
    like, shape = (bias, bias.shape) if bias is not None and bias_gradient else (q, (0,))
    dbias = torch.empty(shape, dtype=like.dtype, device=q.device)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dbias


@backward.plan
def plan_gradients(
    plan: Plan, doutput: Operand, output: Operand, lse: Operand, bias_gradient: bool, *arguments: Any
) -> tuple[Operand, ...]:
    return gradients_of(dense_problem(plan, *arguments), doutput, output, lse, bias_gradient)


def gradients_of(
    problem: Problem, doutput: Operand, output: Operand, lse: Operand, bias_gradient: bool
) -> tuple[Operand, ...]:
    """Plan dq, dk, dv and dbias; dbias is empty where it is not wanted."""
    planned = plan_backward(problem, doutput, output, lse, bias_gradient)
    return planned if len(planned) == 4 else (*planned, problem.plan.empty((0,), problem.q.dtype))


def prepare(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, mask: Tensor | None, *options: Any
) -> tuple[Any, ...]:  # fmt: skip
    """Return the arguments as the kernels take them. The options are those of `AttentionOptions`."""
    given = AttentionOptions(*options)
    return q, k, v, bias, mask, given.seed if given.dropout else None, *Numbers.of(q, causal, given)


def takes(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, seed: Tensor | None, *numbers: Any
) -> bool:  # fmt: skip
    """Return whether the kernels compute this call.

    On a GPU they leave doubles to PyTorch: tensor cores do not help. They also leave exact single precision with wide
    heads: the bf16 parts of two tiles exceed the register budget.
    """
    if 0 in q.shape[1:2] and q.shape[1] != k.shape[1]:  # no head of q for a head of k
        return False
    return takes_heads(q, Numbers(*numbers).tf32)


def takes_heads(q: Tensor, tf32: bool) -> bool:
    """Return whether the kernels compute heads of this size and dtype."""
    if q.device.type != "cpu" and q.dtype == torch.float64:
        return False
    exact = q.device.type != "cpu" and q.dtype == torch.float32 and not tf32
    return q.shape[-1] <= (LARGEST_EXACT_HEAD if exact else LARGEST_HEAD)


def is_fused(q: Tensor, k: Tensor, bias: Tensor | None, mask: Tensor | None, numbers: Numbers) -> bool:
    """Return whether PyTorch's fused attention means the same. Its causal mask aligns the first query and key."""
    is_causal = numbers.right == 0 and q.shape[2] == k.shape[2]
    sees_all_before = numbers.left == UNBOUNDED and (numbers.right == UNBOUNDED or is_causal)
    return sees_all_before and bias is None and mask is None and not numbers.softcap and not numbers.dropout


def sizes(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, seed: Tensor | None, *numbers: Any
) -> tuple[Any, ...]:  # fmt: skip
    """Return what decides whether PyTorch is faster: whether it has a fused kernel, and how heads are grouped.

    `softcap` and `dropout` are numbers, not sizes. `is_fused` keeps them apart from attention without them.
    """
    given = Numbers(*numbers)
    group = q.shape[1] // max(k.shape[1], 1)
    return q, k, v, bias, mask, given.left, given.right, group, is_fused(q, k, bias, mask, given), given.tf32


def native(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, mask: Tensor | None, *options: Any
) -> Tensor:  # fmt: skip
    """Compute by PyTorch's fused attention where it means the same, else, and under transforms, by the reference."""
    given = AttentionOptions(*options)
    numbers = Numbers.of(q, causal, given)
    if is_transformed() or not is_fused(q, k, bias, mask, numbers):
        return reference(q, k, v, causal, bias, mask, *given)
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.dtype == torch.float32 and q.is_cuda:
        # PyTorch's only fused kernel for single precision has no GQA. Without a fused kernel PyTorch makes all scores.
        k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in (k, v))
        grouped = False
    return F.scaled_dot_product_attention(q, k, v, is_causal=numbers.right == 0, scale=given.scale, enable_gqa=grouped)


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, mask, seed, *context.numbers = inputs
    context.mark_non_differentiable(output[1])
    context.set_materialize_grads(False)
    context.save_for_backward(*output, q, k, v, bias, mask, seed)


def gradient(context: Any, doutput: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if doutput is None:  # the loss does not depend on the output
        return (None,) * 12
    output, lse, *tensors = context.saved_tensors
    wanted = tensors[3] is not None and context.needs_input_grad[3]
    dq, dk, dv, dbias = backward(doutput, output, lse, wanted, *tensors, *context.numbers)
    return dq, dk, dv, dbias if wanted else None, *(None,) * 8


def with_seed_tensor(q: Any, *others: Any) -> tuple[Any, ...]:
    """Return the arguments with the seed as a tensor where there is dropout: one draw a call, one plan for all seeds.

    A seed of a wrong type stays for the checks to refuse.
    """
    *_, dropout, seed = others
    is_seed = seed is None or (isinstance(seed, int) and not isinstance(seed, bool))
    if not dropout or not is_seed or not isinstance(q, Tensor):
        return q, *others
    return q, *others[:-1], seed_tensor(seed, q.device)


def completed(q: Any, k: Any, v: Any, causal: Any, bias: Any, mask: Any, *options: Any) -> tuple[Any, ...]:
    """Return the arguments with a simple mask and with a seed. Arguments of a wrong type stay for the checks."""
    are_tensors = isinstance(mask, Tensor) and (bias is None or isinstance(bias, Tensor))
    if are_tensors and all(isinstance(one, Tensor) and one.ndim == 4 for one in (q, k)):
        bias, mask = with_simple_mask(q, k, bias, mask)
    return with_seed_tensor(q, k, v, causal, bias, mask, *options)


ATTENTION = Options(
    takes=takes, switches=tf32_allowed, complete=with_seed_tensor, autocasts=True, returns="first"
)  # fmt: skip


@operator(
    "attention", reference=reference, native=native, forward=forward, prepare=prepare,
    save=save, gradient=gradient,
    options=replace(ATTENTION, complete=completed, sizes=sizes, most_shapes_by_torch=MOST_SHAPES_BY_TORCH),
)  # fmt: skip
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
) -> Tensor:
    """Return softmax(scale · q·kᵀ + bias) · v. The matrix of scores never reaches memory.

    q is [batch, heads, queries, head size]; k and v are [batch, key heads, keys, head size], where key heads divide
    heads, and neighbouring heads of q share one of k and v. Any strides: [batch, length, heads, head size] seen
    transposed costs no copy, and the output is laid out as q.

    - `causal`: a query sees no key after its own position. The last query has the position of the last key. So with
      more keys than queries, the first query sees all earlier keys too.
    - `window=(left, right)`: how many keys a query sees before and after its own position; −1 for no limit on a side.
    - `mask`: boolean, true for keys that may be attended to: [batch, keys], or any shape that broadcasts to
      [batch, heads, queries, keys], as [queries, keys] and [batch, 1, 1, keys]. A mask with a floating-point dtype is
      added to the scores, as in `scaled_dot_product_attention`. A boolean [n, keys] with as many sequences as queries
      is [batch, keys]. Only the mask's own elements are stored: fastest without queries and heads.
    - `bias`: added to the scores; broadcasts to [batch, heads, queries, keys] along all but the keys, and has a
      gradient. Of any dtype.
    - `scale`: 1/√(head size) unless given; positive.
    - `softcap`: where positive, scores become softcap · tanh(score / softcap) before the bias is added.
    - `dropout`: the fraction of weights that become zero; the others are scaled up to match. The same `seed` drops the
      same weights: a number, or an int64 tensor with one. Without a seed PyTorch's generator draws one for each call.

    A query that sees no key gets zeros, and passes on no gradient. The gradients are the same bits at every run.
    """
    require_heads("attention", q, k, v)
    require_options("attention", scale, window, softcap, dropout, seed)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[0] != q.shape[0]:
            raise ValueError(f"attention: {name} has a batch of {tensor.shape[0]}, but q of {q.shape[0]}")
    require_bias(bias, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    require_mask(mask, q, k)
    require_same_device("attention", q=q, k=k, v=v, bias=bias, mask=mask)
    return q


def require_heads(name: str, q: Tensor, k: Tensor, v: Tensor, dimensions: int = 4) -> None:
    """Check that q, k and v are tensors of heads that go together; the heads are their second dimension."""
    require_floating(name, q=q, k=k, v=v)
    for label, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != dimensions:
            raise ValueError(f"{name}: {label} has shape {tuple(tensor.shape)}, but must have {dimensions} dimensions")
        if tensor.shape[-1] != q.shape[-1]:
            raise ValueError(f"{name}: {label} has a head size of {tensor.shape[-1]}, but q of {q.shape[-1]}")
        require_same_dtype(name, label, tensor, "q", q)
    if v.shape != k.shape:
        raise ValueError(f"{name}: v has shape {tuple(v.shape)}, but k has {tuple(k.shape)}; they must be the same")
    divides = q.shape[1] % k.shape[1] == 0 if k.shape[1] else q.shape[1] == 0
    if not divides:
        raise ValueError(f"{name}: k has {k.shape[1]} heads, which do not divide the {q.shape[1]} of q")


def require_options(
    name: str, scale: float | None, window: Sequence[int] | None, softcap: float, dropout: float, seed: object
) -> None:
    if scale is not None:
        require_positive(name, "scale", scale)
    require_number(name, "softcap", softcap, at_least=0.0)
    require_number(name, "dropout", dropout, at_least=0.0)
    if dropout >= 1:
        raise ValueError(f"{name}: dropout is {dropout}, but must be less than 1")
    if window is not None and not _is_window(window):
        raise ValueError(f"{name}: window is {window!r}, but must be two whole numbers, each −1 or more")
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise ValueError(
                f"{name}: seed is a tensor {dtype_name(seed)} of {seed.numel()} elements, but must be one int64"
            )
    elif seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, torch.SymInt))):
        raise TypeError(f"{name}: seed is a {type(seed).__name__}, but must be a whole number or a tensor")


def _is_window(window: Sequence[int]) -> bool:
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        return False
    return all(isinstance(one, (int, torch.SymInt)) and not isinstance(one, bool) and one >= -1 for one in window)


def require_bias(bias: Tensor | None, scores: tuple[int, int, int, int]) -> None:
    if bias is None:
        return
    require_floating("attention", bias=bias)
    shape = (*(1,) * (4 - bias.ndim), *bias.shape)
    if len(shape) > 4 or shape[3] != scores[3] or any(a not in (1, b) for a, b in zip(shape[:3], scores, strict=False)):
        raise ValueError(
            f"attention: bias has shape {tuple(bias.shape)}, but must end in the {scores[3]} keys and broadcast to "
            f"[batch, heads, queries, keys], here {scores}"
        )
