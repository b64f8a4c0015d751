"""Short sequences: one program holds all scores of a head. There is no loop over keys, and no statistics in memory.

The backward is one kernel of five products. A program computes p and ds of a head once, and from them dq, dk and dv. If
the gradient of a bias is wanted, the program goes on to the next sequence that shares the bias and adds its ds in
registers. A second kernel adds up these partial sums: no atomics, the same bits at every run.

In the backward scores are [keys, queries]: then pᵀ and dsᵀ lie as the tensor cores need them for dv and dk, and only ds
for dq has to be transposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from tilesmith.ops.attention.device.scores import ScoreTile, Scoring, scored, weighed
from tilesmith.ops.attention.device.split_operands import multiplied, only_rows, operand_like, transposed
from tilesmith.ops.attention.device.tiles import (
    HeadRows,
    is_attended,
    is_seen,
    load_tile,
    place_of,
    query_place,
    store_tile,
)
from tilesmith.ops.attention.problem import SMALLEST_BLOCK, Gradients, Problem
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.device.bf16x3 import bf16_parts
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand
from tilesmith.toolchain.versions import RegisterUse, register_use

LONGEST = 64  # four warps hold 64 × 64 scores in registers
_NOT_SPECIALISED = ("per_member", "n_heads", "query_rows", "key_rows", "left", "right")


@triton.jit
def as_operand(tile, BF16X3: tl.constexpr):
    """Return a tile as an operand: a tuple of the tile itself, or of its bf16 parts."""
    return bf16_parts(tile) if BF16X3 == "on_load" else (tile,)


@triton.jit(do_not_specialize=_NOT_SPECIALISED)
def attention_short_forward_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, output_ptr, lse_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, output_strides,
    per_member, n_heads, query_rows, key_rows, left, right, scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, BF16X3: tl.constexpr, BIAS_DESCRIBED: tl.constexpr, CHECKED: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the output and log₂ Σ 2^score of one head of one sequence.

    CHECKED unless the block is full and every query sees every key.
    """
    program = tl.program_id(0)
    head = program % n_heads
    sequence = program // n_heads
    place = place_of(sequence, per_member)
    q_rows = HeadRows(q_ptr, q_strides, 0, query_rows)
    k_rows = HeadRows(k_ptr, k_strides, 0, key_rows)
    v_rows = HeadRows(v_ptr, v_strides, 0, key_rows)
    output_rows = HeadRows(output_ptr, output_strides, 0, query_rows)
    scoring = Scoring(query_rows, key_rows, left, right, scale, None, bias_ptr, bias_strides)
    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    q = load_tile(q_rows, place, head, 0, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, CHECKED)
    k = load_tile(k_rows, place, head, 0, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, CHECKED)
    v = load_tile(v_rows, place, head, 0, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, CHECKED)
    products = multiplied(as_operand(q, BF16X3), transposed(as_operand(k, BF16X3)), None, COMPUTE, PRECISION)
    tile = ScoreTile(place, head, 0, 0, rows[:, None], columns[None, :])
    scores, factor, _ = scored(products, tile, scoring, BIAS_DESCRIBED, True)
    if CHECKED:
        seen = is_seen(rows[:, None], columns[None, :], query_rows, key_rows, left, right)
        scores = tl.where(seen, scores, float("-inf"))
    if mask_ptr is not None:
        attended = is_attended(mask_ptr, mask_strides, place, 0, columns[None, :], key_rows)
        scores = tl.where(attended, scores, float("-inf"))
    largest = tl.max(scores, axis=1) * factor
    subtracted = tl.where(largest == float("-inf"), 0.0, largest)  # −∞ − −∞ is NaN
    weights = tl.exp2(scores * factor - subtracted[:, None])  # [BLOCK_QUERIES, BLOCK_KEYS]
    total = tl.sum(weights, axis=1)
    v = as_operand(v, BF16X3)
    if mask_ptr is not None:
        v = only_rows(v, is_attended(mask_ptr, mask_strides, place, 0, columns[:, None], key_rows))
    output = multiplied(operand_like(weights, v), v, None, COMPUTE, PRECISION)  # [BLOCK_QUERIES, BLOCK_HEAD]
    sees_nothing = total == 0.0
    output *= (1.0 / tl.where(sees_nothing, 1.0, total))[:, None]
    lse = tl.where(sees_nothing, float("inf"), largest + tl.log2(total))
    store_tile(output_rows, place, head, 0, output, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK)
    lse_ptr += query_place(None, sequence, head, n_heads, query_rows, 0)
    tl.store(lse_ptr + rows, lse, mask=rows < query_rows)


@triton.jit(do_not_specialize=[*_NOT_SPECIALISED, "bias_heads", "n_sharers", "per_split", "split_size"])
def attention_short_backward_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, doutput_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr,
    q_strides, k_strides, v_strides, bias_strides, mask_strides, doutput_strides, dq_strides, dk_strides, dv_strides,
    per_member, n_heads, query_rows, key_rows, left, right, scale, bias_heads, n_sharers, per_split, split_size,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr, BF16X3: tl.constexpr, BIAS_DESCRIBED: tl.constexpr, CHECKED: tl.constexpr,
    ONE_ROW: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dq, dk and dv of `per_split` of the `n_sharers`: sequences and heads that share one matrix of the bias.

    dbias is [partial sums, bias sequences, bias heads, bias rows, keys]. ONE_ROW where all queries share the bias.
    Without dbias every head of every sequence is its own only sharer.
    """
    program = tl.program_id(0)
    bias_head = program % bias_heads
    bias_sequence = program // bias_heads
    begin = tl.program_id(1) * per_split
    end = tl.minimum(begin + per_split, n_sharers)
    q_rows = HeadRows(q_ptr, q_strides, 0, query_rows)
    k_rows = HeadRows(k_ptr, k_strides, 0, key_rows)
    v_rows = HeadRows(v_ptr, v_strides, 0, key_rows)
    doutput_rows = HeadRows(doutput_ptr, doutput_strides, 0, query_rows)
    dq_rows = HeadRows(dq_ptr, dq_strides, 0, query_rows)
    dk_rows = HeadRows(dk_ptr, dk_strides, 0, key_rows)
    dv_rows = HeadRows(dv_ptr, dv_strides, 0, key_rows)
    scoring = Scoring(query_rows, key_rows, left, right, scale, None, bias_ptr, bias_strides)
    rows = tl.arange(0, BLOCK_QUERIES)
    columns = tl.arange(0, BLOCK_KEYS)
    dbias = tl.zeros([BLOCK_KEYS, BLOCK_QUERIES], COMPUTE)
    # Without loop-invariant code motion: hoisted addresses would exceed the register budget.
    for sharer in tl.range(begin, end, disable_licm=True):
        head = bias_head + sharer % (n_heads // bias_heads)
        sequence = bias_sequence * (n_sharers // (n_heads // bias_heads)) + sharer // (n_heads // bias_heads)
        place = place_of(sequence, per_member)
        # Each tile is loaded just before its use: registers, not latency, limit the occupancy.
        q = load_tile(q_rows, place, head, 0, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, CHECKED)
        q = as_operand(q, BF16X3)
        k = load_tile(k_rows, place, head, 0, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, CHECKED)
        k = as_operand(k, BF16X3)
        head_lse_ptr = lse_ptr + query_place(None, sequence, head, n_heads, query_rows, 0)
        lse = tl.load(head_lse_ptr + rows, mask=rows < query_rows, other=float("inf"))  # [BLOCK_QUERIES]
        attended = None
        if mask_ptr is not None:
            attended = is_attended(mask_ptr, mask_strides, place, 0, columns[:, None], key_rows)
            k = only_rows(k, attended)
        products = multiplied(k, transposed(q), None, COMPUTE, PRECISION)  # [BLOCK_KEYS, BLOCK_QUERIES]
        weights, _ = weighed(
            products,
            ScoreTile(place, head, 0, 0, rows[None, :], columns[:, None]),
            scoring,
            lse[None, :],
            attended,
            BIAS_DESCRIBED,
            True,
            CHECKED,
        )
        # lse is rounded, the more coarsely the larger the scores. The weights of a query must still add up to one.
        total = tl.sum(weights, axis=0)  # [BLOCK_QUERIES]
        weights *= (1.0 / tl.where(total == 0.0, 1.0, total))[None, :]
        doutput = load_tile(doutput_rows, place, head, 0, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK, CHECKED)
        doutput = as_operand(doutput, BF16X3)
        dv = multiplied(operand_like(weights, doutput), doutput, None, COMPUTE, PRECISION)  # [BLOCK_KEYS, BLOCK_HEAD]
        if mask_ptr is not None:
            dv = tl.where(attended, dv, 0.0)
        store_tile(dv_rows, place, head, 0, dv, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
        v = load_tile(v_rows, place, head, 0, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, CHECKED)
        v = as_operand(v, BF16X3)
        if mask_ptr is not None:
            v = only_rows(v, attended)
        dweights = multiplied(v, transposed(doutput), None, COMPUTE, PRECISION)  # [BLOCK_KEYS, BLOCK_QUERIES]
        # From all weights, not from the output, which is rounded. So the gradients of a query's scores add up to zero,
        # which matters for a bias that is nearly the same for all keys.
        delta = tl.sum(weights * dweights, axis=0)  # [BLOCK_QUERIES]
        dscores = weights * (dweights - delta[None, :])  # [BLOCK_KEYS, BLOCK_QUERIES]
        if mask_ptr is not None:
            dscores = tl.where(attended, dscores, 0.0)
        if dbias_ptr is not None:
            dbias += dscores
        dscores = operand_like(dscores, q)
        dk = multiplied(dscores, q, None, COMPUTE, PRECISION) * scale  # [BLOCK_KEYS, BLOCK_HEAD]
        if mask_ptr is not None:
            dk = tl.where(attended, dk, 0.0)
        store_tile(dk_rows, place, head, 0, dk, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK)
        dq = multiplied(transposed(dscores), k, None, COMPUTE, PRECISION) * scale  # [BLOCK_QUERIES, BLOCK_HEAD]
        store_tile(dq_rows, place, head, 0, dq, BLOCK_QUERIES, HEAD, BLOCK_HEAD, WALK)

    if dbias_ptr is not None:
        dbias_ptr += tl.program_id(1).to(tl.int64) * split_size
        row = program.to(tl.int64)
        if ONE_ROW:
            sums = tl.sum(dbias, axis=1).to(dbias_ptr.dtype.element_ty)
            tl.store(dbias_ptr + row * key_rows + columns, sums, mask=columns < key_rows)
        else:
            pointers = dbias_ptr + (row * query_rows + rows[None, :]) * key_rows + columns[:, None]
            inside = (rows < query_rows)[None, :] & (columns < key_rows)[:, None]
            tl.store(pointers, dbias.to(dbias_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class ShortConfig(Config):
    """Blocks that hold all queries and all keys. `described`, `bf16x3`: as in `ForwardConfig`.

    `short`: whether to use these kernels at all. `programs_per_multiprocessor`: how many programs divide the sequences
    and heads that share a bias.
    """

    BLOCK_QUERIES: int = 64
    BLOCK_KEYS: int = 64
    described: bool = True
    bf16x3: str = ""
    short: bool = True
    programs_per_multiprocessor: int = 2

    def holds(self, problem: Problem) -> bool:
        has_all = problem.queries <= self.BLOCK_QUERIES and problem.keys <= self.BLOCK_KEYS
        return self.short and has_all and self.bf16x3 != "stored"


def fits_one_program(problem: Problem) -> bool:
    """Return whether one program can hold all scores of a head: without GQA, softcap and dropout."""
    is_dense = problem.group == 1 and not problem.packed and problem.only_adds_to_scores
    return is_dense and 0 < max(problem.queries, problem.keys) <= LONGEST


def fits_registers(problem: Problem, *others: Operand) -> bool:
    """Return whether the tiles do not spill with any supported release of Triton. The kernel walks `others` too."""
    narrow = problem.head_block <= (64 if problem.q.element_bytes == 2 else 32)
    gathers = not problem.describable(*others) or (problem.gathers_bias and problem.q.element_bytes > 2)
    # The addresses of 64 × 64 elements exceed the register budget.
    too_many_addresses = gathers and _block(problem) == LONGEST and problem.plan.architecture.target.startswith("cuda")
    return narrow and not too_many_addresses


def _split(problem: Problem) -> bool:
    """Return whether a product of exact single precision is made of bf16 parts."""
    return problem.precision == "bf16x6"


def _block(problem: Problem) -> int:
    """Return the block that holds all queries and all keys."""
    block = max(bucket(max(problem.queries, problem.keys)), SMALLEST_BLOCK)
    # Three parts of a block of 32 do not fit where tensor cores read their left operand from registers.
    return LONGEST if _split(problem) and block > SMALLEST_BLOCK else block


def choose_short(problem: Problem, *others: Operand) -> ShortConfig:
    """Return the configuration to launch with. A tuned one may turn these kernels off: see `ShortConfig.holds`."""
    default = short_config(problem, problem.describable(*others))
    return problem.plan.choose(default, "short", *problem.sizes)


def short_config(problem: Problem, described: bool) -> ShortConfig:
    """Return the default tiles. Small ones are loaded by pointers, so that all loads are in flight at once."""
    block, source = _block(problem), "on_load" if _split(problem) else ""
    # Loads the next row while one is computed: the backward of batch 4, 64 rows of 64 and 4 heads of 32 takes 42.8 µs
    # on an H200 instead of 55.4.
    ahead = source and described and block == LONGEST and register_use() < RegisterUse.MOST
    return ShortConfig(
        num_warps=4 if block > SMALLEST_BLOCK else 2 if source else 1,
        num_stages=2 if ahead else 1,
        BLOCK_QUERIES=block,
        BLOCK_KEYS=block,
        described=described and block == LONGEST,
        bf16x3=source,
    )


def plan_short_forward(problem: Problem) -> tuple[Operand, ...]:
    """Plan the output, and log₂ Σ 2^score of each query."""
    plan, config = problem.plan, choose_short(problem)
    output = plan.empty_like(problem.q)
    lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
    plan.launch(
        attention_short_forward_kernel, (problem.sequences * problem.heads,), config,
        **_arguments(problem, config, output=output), lse_ptr=lse,
    )  # fmt: skip
    return output, lse


def plan_short_backward(task: Gradients) -> tuple[Operand, ...]:
    """Plan dq, dk and dv, and dbias if it is wanted."""
    problem, lse, dq, dk, dv = task.problem, task.lse, task.dq, task.dk, task.dv
    plan, config = problem.plan, choose_short(problem, task.doutput)
    arguments = _arguments(problem, config, doutput=task.doutput, dq=dq, dk=dk, dv=dv)
    if problem.bias is None or not task.wants_dbias:
        plan.launch(
            attention_short_backward_kernel, (problem.sequences * problem.heads, 1), config, **arguments, lse_ptr=lse,
            dbias_ptr=None, bias_heads=problem.heads, n_sharers=1, per_split=1, split_size=0, ONE_ROW=False,
        )  # fmt: skip
        return dq, dk, dv
    dbias = plan.empty(problem.bias.shape, problem.bias.dtype)
    sequences, heads, rows, keys = problem.bias_shape
    sharers = problem.sequences * problem.heads // max(sequences * heads, 1)
    programs = plan.multiprocessors * config.programs_per_multiprocessor
    splits = min(max(programs // max(sequences * heads, 1), 1), max(sharers, 1))
    per_split = max(triton.cdiv(sharers, splits), 1)
    splits = max(triton.cdiv(sharers, per_split), 1)  # an empty sum too: it is zero
    size = sequences * heads * rows * keys
    found = plan.empty((splits, size), problem.statistics_dtype) if splits > 1 else dbias
    plan.launch(
        attention_short_backward_kernel, (sequences * heads, splits), config, **arguments, lse_ptr=lse,
        dbias_ptr=found, bias_heads=heads, n_sharers=sharers, per_split=per_split, split_size=size,
        ONE_ROW=rows == 1 and problem.queries != 1,
    )  # fmt: skip
    if splits > 1:
        plan_sum_of_partials(plan, found, dbias.seen_as((size,), (1,)), problem.compute)
    return dq, dk, dv, dbias


_ROWS_OF_K = ("k", "v", "dk", "dv")
_NOT_TAKEN = (
    "seed_ptr", "query_starts_ptr", "key_starts_ptr", "n_sequences", "group", "softcap", "drop_below", "keep_scale",
)  # fmt: skip


def _arguments(problem: Problem, config: ShortConfig, **tensors: Operand) -> dict[str, Any]:
    """Return the arguments that both kernels take."""
    rows = dict.fromkeys(("q", "k", "v", *tensors), config.BLOCK_QUERIES)
    rows |= {name: config.BLOCK_KEYS for name in _ROWS_OF_K if name in rows}
    tiles, walk = problem.tiles(rows, config.described, **tensors)
    general = {name: value for name, value in problem.arguments().items() if name not in _NOT_TAKEN}
    sees_all = problem.left == problem.right == UNBOUNDED
    is_full = sees_all and (problem.queries, problem.keys) == (config.BLOCK_QUERIES, config.BLOCK_KEYS)
    return {
        **general, **tiles, **problem.bias_tiles(config), "CHECKED": not is_full,
        "WALK": walk, "BF16X3": config.bf16x3 if problem.is_exact else "", "PRECISION": problem.precision,
    }  # fmt: skip


class ShortForward:
    """Output and log-sum-exp in one kernel."""

    def takes(self, problem: Problem) -> bool:
        return fits_one_program(problem)

    def suits(self, problem: Problem) -> bool:
        return fits_registers(problem) and choose_short(problem).holds(problem)

    def plan(self, problem: Problem) -> tuple[Operand, ...]:
        return plan_short_forward(problem)


class ShortBackward:
    """dq, dk, dv and partial sums of dbias in one kernel."""

    def takes(self, task: Gradients) -> bool:
        return fits_one_program(task.problem)

    def suits(self, task: Gradients) -> bool:
        problem, doutput = task.problem, task.doutput
        return fits_registers(problem, doutput) and choose_short(problem, doutput).holds(problem)

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        return plan_short_backward(task)
