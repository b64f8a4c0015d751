"""The forward for long sequences of wide heads on Hopper: the same computation as in `forward`, which read first.

There a program's warps all do the same, and while they are at their exponentials the tensor cores idle, unless another
program happens to be at its products. Here it is arranged. Of each program one warp does nothing but fetch keys and
values, into shared memory, as room becomes free. Two warpgroups have 64 queries each and take turns: the one whose turn
it is starts the products of the next scores and of the last weights, hands on the turn, and is at its exponentials
while the other's products are made. Waiting is for barriers in shared memory, each of which counts arrivals; `i // n %
2`, the phase, tells one round of a barrier from the next.

b4 h32 s4096 d128 on an H200 at its power limit: 568 TFLOP/s, causal 504, where the plain form reached 443
and 395. Heads of 64 gain nothing by turns, and have `hopper_narrow_forward`.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.attention.tiles import NOT_SPECIALISED
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.warpgroups import barriers
from tilesmith.toolchain import interpreter
from tilesmith.toolchain.gluon import fetch, put

LOG2_E = gl.constexpr(1.4426950408889634)
GROUPS = gl.constexpr(2)  # warpgroups that compute
GROUP_WARPS = gl.constexpr(4)
ROWS = gl.constexpr(64)  # queries of a warpgroup: what its products have at least
REGISTERS = gl.constexpr(240)  # of a thread that computes; one that fetches gives its own up for them
FETCHING_REGISTERS = gl.constexpr(24)


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def attention_hopper_forward_kernel(
    q, k, v, output, lse_ptr, n_heads, group, query_rows, key_rows, right, scale,
    HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """q, k, v and output are descriptors: of ROWS queries, of BLOCK_KEYS keys."""
    q_tiles = gl.allocate_shared_memory(q.dtype, [GROUPS, 1, 1, ROWS, HEAD], q.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BLOCK_KEYS, HEAD], k.layout)
    v_tiles = gl.allocate_shared_memory(v.dtype, [STAGES, 1, 1, BLOCK_KEYS, HEAD], v.layout)
    q_ready = barriers(1, 1)
    k_ready = barriers(STAGES, 1)
    v_ready = barriers(STAGES, 1)
    k_free = barriers(STAGES, GROUPS)
    v_free = barriers(STAGES, GROUPS)
    turns = barriers(GROUPS, 1)
    mbarrier.arrive(turns.index(0), count=1)
    fence_async_shared()
    tiles = (q_tiles, k_tiles, v_tiles)
    signals = (q_ready, k_ready, v_ready, k_free, v_free)
    sizes = (n_heads, group, query_rows, key_rows, right)
    gl.warp_specialize(
        [
            (attend, (output, lse_ptr, tiles, signals, turns, sizes, scale, HEAD, BLOCK_KEYS, STAGES, 0)),
            (attend, (output, lse_ptr, tiles, signals, turns, sizes, scale, HEAD, BLOCK_KEYS, STAGES, 1)),
            (fetch_tiles, (q, k, v, tiles, signals, sizes, HEAD, BLOCK_KEYS, STAGES)),
        ],
        [GROUP_WARPS, 1],
        [REGISTERS, FETCHING_REGISTERS],
    )


@gluon.jit
def block_of_program(n_heads, query_rows):
    """Sequence, head and first query. As in `tiles`: neighbours share a head, and its last block starts first."""
    n_blocks = (query_rows + GROUPS * ROWS - 1) // (GROUPS * ROWS)
    program = gl.program_id(0)
    block = n_blocks - 1 - program % n_blocks
    return program // n_blocks // n_heads, program // n_blocks % n_heads, block * GROUPS * ROWS


@gluon.jit
def blocks_seen(start, query_rows, key_rows, right, BLOCK_KEYS: gl.constexpr):
    """How many blocks of keys all queries of a program see whole, and how many any of them sees any of."""
    shift = key_rows - query_rows
    last = gl.minimum(start + GROUPS * ROWS, query_rows) - 1
    whole = gl.minimum(gl.maximum(start + shift + right + 1, 0), key_rows) // BLOCK_KEYS
    seen = gl.minimum(gl.maximum(last + shift + right + 1, 0), key_rows)
    return whole, (seen + BLOCK_KEYS - 1) // BLOCK_KEYS


@gluon.jit
def fetch_tiles(
    q, k, v, tiles, signals, sizes, HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """The one warp that fetches: queries, then keys and values from the last block to the first."""
    q_tiles, k_tiles, v_tiles = tiles
    q_ready, k_ready, v_ready, k_free, v_free = signals
    n_heads, group, query_rows, key_rows, right = sizes
    sequence, head, start = block_of_program(n_heads, query_rows)
    _, n_blocks = blocks_seen(start, query_rows, key_rows, right, BLOCK_KEYS)
    mbarrier.expect(q_ready.index(0), GROUPS * ROWS * HEAD * 2)
    for part in gl.static_range(GROUPS):
        fetch(q, [sequence, head, start + part * ROWS, 0], q_ready.index(0), q_tiles.index(part))
    for i in range(n_blocks):
        slot = i % STAGES
        emptied = (i // STAGES + 1) % 2  # of the round before: the first finds every place free
        corner = [sequence, head // group, (n_blocks - 1 - i) * BLOCK_KEYS, 0]
        mbarrier.wait(k_free.index(slot), emptied)
        mbarrier.expect(k_ready.index(slot), BLOCK_KEYS * HEAD * 2)
        fetch(k, corner, k_ready.index(slot), k_tiles.index(slot))
        mbarrier.wait(v_free.index(slot), emptied)
        mbarrier.expect(v_ready.index(slot), BLOCK_KEYS * HEAD * 2)
        fetch(v, corner, v_ready.index(slot), v_tiles.index(slot))


@gluon.jit
def attend(
    output_tensor, lse_ptr, tiles, signals, turns, sizes, scale,
    HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """A warpgroup that computes: its queries, all keys that they see, and what comes of them."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, BLOCK_KEYS, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [GROUP_WARPS, 1], [16, HEAD, 16])
    q_tiles, k_tiles, v_tiles = tiles
    q_ready, k_ready, v_ready, k_free, v_free = signals
    n_heads, _group, query_rows, key_rows, right = sizes
    sequence, head, start = block_of_program(n_heads, query_rows)
    whole, n_blocks = blocks_seen(start, query_rows, key_rows, right, BLOCK_KEYS)
    factor = scale * LOG2_E
    rows = start + PART * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    last_seen = gl.minimum(rows + (key_rows - query_rows) + right, key_rows - 1)

    largest = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    output = gl.zeros([ROWS, HEAD], gl.float32, OUTPUT)
    mbarrier.wait(q_ready.index(0), 0)
    q = q_tiles.index(PART).reshape([ROWS, HEAD])
    if n_blocks > 0:
        products = start_scores(q, k_tiles, k_ready, turns, 0, SCORES, HEAD, BLOCK_KEYS, STAGES, PART)
        mbarrier.arrive(turns.index((PART + 1) % GROUPS), count=1)
        products = warpgroup_mma_wait(0, deps=[products])
        mbarrier.arrive(k_free.index(0), count=1)
        new, _, largest, total = weighed(
            products, largest, total, factor, (n_blocks - 1) * BLOCK_KEYS, last_seen, SCORES, BLOCK_KEYS, True
        )
        weights = gl.convert_layout(new.to(k_tiles.dtype), gl.DotOperandLayout(0, OUTPUT, 2))
        # From the last block on: those that not every query sees whole come first, and are the only ones checked.
        for checked in gl.static_range(2):
            begin = 1 if checked == 0 else gl.maximum(n_blocks - whole, 1)
            end = n_blocks - whole if checked == 0 else n_blocks
            for i in range(begin, end):
                products = start_scores(q, k_tiles, k_ready, turns, i, SCORES, HEAD, BLOCK_KEYS, STAGES, PART)
                output = start_sum(weights, v_tiles, v_ready, output, i - 1, HEAD, BLOCK_KEYS, STAGES)
                mbarrier.arrive(turns.index((PART + 1) % GROUPS), count=1)
                products = warpgroup_mma_wait(1, deps=[products])
                mbarrier.arrive(k_free.index(i % STAGES), count=1)
                new, shrink, largest, total = weighed(
                    products, largest, total, factor, (n_blocks - 1 - i) * BLOCK_KEYS, last_seen,
                    SCORES, BLOCK_KEYS, checked == 0,
                )  # fmt: skip
                output = warpgroup_mma_wait(0, deps=[output])
                mbarrier.arrive(v_free.index((i - 1) % STAGES), count=1)
                output = output * gl.convert_layout(shrink, gl.SliceLayout(1, OUTPUT))[:, None]
                weights = gl.convert_layout(new.to(k_tiles.dtype), gl.DotOperandLayout(0, OUTPUT, 2))
        output = start_sum(weights, v_tiles, v_ready, output, n_blocks - 1, HEAD, BLOCK_KEYS, STAGES)
        output = warpgroup_mma_wait(0, deps=[output])

    sees_nothing = total == 0.0
    lse = gl.where(sees_nothing, float("inf"), largest + gl.log2(total))
    lse_ptr += (gl.cast(sequence, gl.int64) * n_heads + head) * query_rows
    gl.store(lse_ptr + rows, lse, mask=rows < query_rows)
    total = gl.convert_layout(gl.where(sees_nothing, 1.0, total), gl.SliceLayout(1, OUTPUT))
    # By way of the queries' place, which are not needed any more.
    q.store((output / total[:, None]).to(k_tiles.dtype))
    fence_async_shared()
    put(output_tensor, [sequence, head, start + PART * ROWS, 0], q_tiles.index(PART))
    tma.store_wait(0)


@gluon.jit
def start_scores(
    q, k_tiles, k_ready, turns, i,
    SCORES: gl.constexpr, HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """The products with the i-th block of keys, begun when it is this warpgroup's turn."""
    mbarrier.wait(k_ready.index(i % STAGES), i // STAGES % 2)
    mbarrier.wait(turns.index(PART), i % 2)
    zeros = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, SCORES)
    k = k_tiles.index(i % STAGES).reshape([BLOCK_KEYS, HEAD])
    return warpgroup_mma(q, k.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def start_sum(
    weights, v_tiles, v_ready, output, i, HEAD: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """The output with the weighted values of the i-th block added, begun."""
    mbarrier.wait(v_ready.index(i % STAGES), i // STAGES % 2)
    v = v_tiles.index(i % STAGES).reshape([BLOCK_KEYS, HEAD])
    return warpgroup_mma(weights, v, output, is_async=True)


@gluon.jit
def weighed(
    products, largest, total, factor, key, last_seen, SCORES: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    CHECKED: gl.constexpr,
):  # fmt: skip
    """A block's weights, what to shrink the sums so far by, and the new largest score and sum of weights."""
    if CHECKED:
        keys = key + gl.arange(0, BLOCK_KEYS, gl.SliceLayout(0, SCORES))
        products = gl.where(keys[None, :] <= last_seen[:, None], products, float("-inf"))
    new_largest = gl.maximum(largest, gl.max(products, 1) * factor)
    subtracted = new_largest
    if CHECKED:  # −∞ − −∞ is no number: a row may see nothing yet
        subtracted = gl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = gl.exp2(products * factor - subtracted[:, None])
    shrink = gl.exp2(largest - subtracted)
    return weights, shrink, new_largest, total * shrink + gl.sum(weights, 1)


@dataclass(frozen=True)
class HopperForwardConfig(Config):
    """BLOCK_KEYS at a time, and room for STAGES blocks of them."""

    BLOCK_KEYS: int = 128
    STAGES: int = 2

    @property
    def all_warps(self) -> int:
        """With those that fetch, of which there is a warpgroup, though all but one of its warps end at once."""
        return (int(GROUPS.value) + 1) * int(GROUP_WARPS.value)


LEAST_LENGTH = 1024
"""What a sequence must have of queries and of keys: with 512 and causal the plain form takes 266 µs, and this 293."""


def suits_hopper(plan: Plan, problem: Problem) -> bool:
    """Whether this kernel can compute it, and is the one to: the interpreter does not know Gluon."""
    if plan.device.type == "cpu" or interpreter.is_interpreting() or plan.architecture.target != "cuda:90":
        return False
    plain = problem.is_plain and not problem.packed and problem.per_member is None and problem.left == UNBOUNDED
    wide = problem.head_block == 128 and problem.q.element_bytes == 2
    return plain and wide and min(problem.queries, problem.keys) >= LEAST_LENGTH and problem.describable(plan)


def plan_hopper_forward(plan: Plan, problem: Problem) -> tuple[Operand, Operand]:
    """Output, and log₂ Σ 2^score of each query."""
    output = plan.empty_like(problem.q)
    lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
    sizes = problem.head_block, bucket(problem.queries), bucket(problem.keys), problem.q.dtype
    config = plan.choose(HopperForwardConfig(), "hopper", *sizes)
    rows, head = int(ROWS.value), problem.head_block
    known = problem.arguments()
    plan.launch(
        attention_hopper_forward_kernel,
        (problem.heads * problem.sequences * triton.cdiv(problem.queries, int(GROUPS.value) * rows),), config,
        q=problem.q.gluon_descriptor((1, 1, rows, head)), output=output.gluon_descriptor((1, 1, rows, head)),
        k=problem.k.gluon_descriptor((1, 1, config.BLOCK_KEYS, head)),
        v=problem.v.gluon_descriptor((1, 1, config.BLOCK_KEYS, head)),
        lse_ptr=lse, HEAD=head,
        **{name: known[name] for name in ("n_heads", "group", "query_rows", "key_rows", "right", "scale")},
    )  # fmt: skip
    return output, lse
