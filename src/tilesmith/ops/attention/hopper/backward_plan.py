"""The launch of `backward.py`: which problems it takes, and the order of its programs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from tilesmith.ops.attention.hopper.backward import attention_hopper_backward_kernel
from tilesmith.ops.attention.hopper.backward_warps import GROUPS, KEYS, ROWS
from tilesmith.ops.attention.hopper.dq_sums import DQ_COLUMNS, DQ_ROWS, SUM_COLUMNS, sum_rows
from tilesmith.ops.attention.hopper.head_tiles import described_heads, parts_of_head
from tilesmith.ops.attention.hopper.problems import takes_plain_problem
from tilesmith.ops.attention.kernels.delta import plan_delta
from tilesmith.ops.attention.kernels.group_parts import number_of_parts, plan_sum_of_parts, with_parts
from tilesmith.ops.attention.problem import Gradients, Problem
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand


@dataclass(frozen=True)
class HopperBackwardConfig(Config):
    """A ring of STAGES blocks of queries, and sets of `set_heads` heads. ASCENDING: see the kernel.

    `least_programs`: groups of heads are split until there are so many programs.
    """

    STAGES: int = 2
    ASCENDING: bool = False
    set_heads: int = 16
    least_programs: int = 256

    @property
    def all_warps(self) -> int:
        """Return all warps of a program: the other warps take a warpgroup, though one of them exits at once."""
        return (int(GROUPS.value) + 1) * int(GROUP_WARPS.value)


def hopper_backward_config(problem: Problem) -> HopperBackwardConfig:
    """Return the default configuration. The figures are TFLOP/s on an H200, with sets of 1, 2, 4, 8, 16 and 32 heads.

    Long sequences need small sets, whose queries stay in the L2 cache; short ones large sets, or programs wait for each
    other. 16,384 tokens of 16 heads of 128: s1024 415, 441, 456, 479, 481, 483; s4096 517, 559, 571, 575, 552, 487;
    s16384 566, 572, 574, 560, 487. Causal: s1024 374, 374, 373, 376, 374, 366; s4096 521, 525, 508, 525, 440, 343;
    s16384 544, 549, 509, 405, 339. Causal with 32 heads of 64: s4096 417, 433, 440, 442, 445, 420; s16384 473, 483,
    482, 448, 395, 341. Sets of 32, 64 and 128 of heads of 64: b8 h16 s256 160, 168, 188; b32 h16 s512 313, 317, 313.

    GQA in ascending order, in µs with sets of 4, 8, 16, 32 and 64 key heads: full b7 s2048 d112, 64 heads on 8: 4372,
    4613, 4912, 5280; b2 s4096 d64, 28 on 4: 1394, 1346, 1330, 1314. Under a causal mask programs of the first keys have
    the most queries, so those of many heads start together: b4 s4096 d128, 32 on 8: 3464 with 8, 2815, 2690; b4 s2048
    d64, 32 on 8: 726 with 8, 572, 495, 467; b2 s16384 d128, 16 on 8: 11415, 10413, 9785, 9925; b1 s1024 d64, 71 on one:
    147 with 64, 103 with all.
    """
    blocks: int = triton.cdiv(problem.keys, int(KEYS.value))
    if problem.group > 1:
        is_full = problem.right == UNBOUNDED
        sets = max(MANY_HEADS // blocks, 16)
        if is_full and problem.queries >= LONG:
            sets = 16 if problem.head_block <= 64 else 8
        return HopperBackwardConfig(
            ASCENDING=True, set_heads=sets, least_programs=_fastest_parts(problem) * _programs(problem)
        )  # fmt: skip
    return HopperBackwardConfig(set_heads=min(max(256 // blocks, 1), 128 if problem.head_block <= 64 else 32))


LONG, MANY_HEADS = 1024, 1024
PROLOGUE, SUM_OF_PARTS, COLUMNS_SUMMED = 5.0, 1.5, 9000
"""Costs in the time of one block of queries, about 2.3 µs: to start and end a program, to add up parts, and how many
columns of 128 keys the kernel that adds parts moves in that time."""


def _fastest_parts(problem: Problem) -> int:
    """Return into how many parts the group of heads is split, by an estimate of the time on this GPU.

    Full attention takes whole waves. Under a causal mask programs of a group wait at each head for the one with the
    most queries, the longer the more blocks of a head run at the same time. In µs on an H200 with one part, and with
    as many as heads: b43 s44 d80, 14 heads on 2: 24.8, 40.4; b1 s128 d72, 32 on 4: 42.8, 17.2. With one part, two and
    four: b3 s1025 d64 causal, 64 on 8: 312, 260, 260; b4 s4096 d128 causal, 32 on 8: 2690, 2777, 3012; b3 s5696 d112
    full, 64 on 8: 15,152, 14,322, 14,543.
    """
    first, rest = parts_of_head(problem.head_size)
    query_blocks: int = triton.cdiv(problem.queries, _queries_at_a_time(first, rest))
    key_blocks: int = triton.cdiv(problem.keys, int(KEYS.value))
    group, programs, multiprocessors = problem.group, _programs(problem), problem.plan.multiprocessors
    is_full = problem.right == UNBOUNDED

    def time(parts: int) -> float:
        longest = PROLOGUE + group / parts * query_blocks
        waves = parts * programs / max(multiprocessors, 1)
        moved = SUM_OF_PARTS + parts * programs * problem.head_size / COLUMNS_SUMMED if parts > 1 else 0.0
        if is_full or key_blocks == 1:
            return math.ceil(waves) * longest + moved
        mean = PROLOGUE + group / parts * (query_blocks + 1) / 2
        at_once = min(max(key_blocks / max(waves, 1.0), 1.0), key_blocks)  # blocks of a head
        waiting = (at_once - 1) / (2 * key_blocks) if parts < group else 0.0
        return max(waves * mean / (1 - waiting), longest) + moved

    return min((parts for parts in range(1, group + 1) if group % parts == 0), key=time)


LEAST_LENGTH, LEAST_ALONE = 33, 129
"""The fewest queries and keys: of heads of more than 64 elements or with GQA, and of other heads. In µs on an H200, and
of the portable kernels: b16 h20 s40 d96 full 23.9 (30.4), b57 h12 s128 d112 full 74.7 (122), b32 s128 d64, 32 heads on
8: 45.7 (71.1), b2 h64:8 s60 d128 causal 14.0 (13.6), b16 h20 s32 d128 24.7 (21.1). Heads of up to 64: b64 h12 s197 full
141 (188), b8 h16 s192 causal 24.3 (23.1). Up to 128 keys are one portable kernel: b32 h16 s128 d64 full 37.8 (38.9)."""


def _queries_at_a_time(first: int, rest: int) -> int:
    """Return the queries of a block for heads of such tiles, so that each warpgroup computes one tile of dq."""
    rows = int(DQ_ROWS.value)
    return rows if rest or first > int(DQ_COLUMNS.value) else 2 * rows


def _programs(problem: Problem) -> int:
    blocks: int = triton.cdiv(problem.keys, int(KEYS.value))
    return problem.sequences * problem.key_heads * blocks


def plan_hopper_backward(task: Gradients) -> tuple[Operand, ...]:
    """Plan δ and the kernel. Returns dq, dk and dv: a problem with a bias takes another form."""
    plan = task.problem.plan
    problem, whole = task.problem, task
    statistics = plan.empty(problem.statistics_shape, problem.statistics_dtype)
    first, rest = parts_of_head(problem.head_size)
    sizes = first + rest, bucket(problem.queries), bucket(problem.keys), problem.q.dtype
    config = plan.choose(hopper_backward_config(problem), "hopper", *sizes)
    queries, keys = _queries_at_a_time(first, rest), int(ROWS.value)
    heads = problem.sequences * problem.heads
    query_blocks = triton.cdiv(problem.queries, queries)
    of_dq, columns = int(DQ_COLUMNS.value), int(SUM_COLUMNS.value)
    sums = plan.empty((heads * query_blocks * queries * (first + rest) // columns, columns), torch.float32)
    counters = plan.empty((heads, query_blocks), torch.int32)
    plan_delta(plan, task, statistics, counters)
    parts = number_of_parts(problem, _programs(problem), config.least_programs)
    task = with_parts(whole, parts)
    key_heads = parts * problem.sequences * problem.key_heads
    in_rows = (2 * heads, statistics.shape[-1]), (statistics.shape[-1], 1)
    known = {**problem.arguments(), "group": problem.group // parts}
    plan.launch(
        attention_hopper_backward_kernel,
        (parts * _programs(problem),), config,
        **described_heads((first, rest), queries, q=problem.q, doutput=task.doutput),
        **described_heads((first, rest), keys, k=problem.k, v=problem.v, dk=task.dk, dv=task.dv),
        **described_heads((of_dq, rest), int(DQ_ROWS.value), dq=task.dq),
        sums_first=sums.gluon_descriptor((sum_rows(of_dq), columns)),
        sums_rest=sums.gluon_descriptor((sum_rows(rest or of_dq), columns)),
        statistics=statistics.seen_as(*in_rows).gluon_descriptor((1, queries)), sums_ptr=sums, counters_ptr=counters,
        n_key_heads=key_heads, set_heads=min(config.set_heads, key_heads), n_parts=parts,
        FIRST=first, REST=rest, QUERIES=queries,
        **{name: known[name] for name in ("n_heads", "group", "query_rows", "key_rows", "right", "scale")},
    )  # fmt: skip
    plan_sum_of_parts(whole, task, parts)
    return whole.dq, whole.dk, whole.dv


class HopperBackward:
    """Hopper, half precision, heads of 33 to 128 elements, all but the shortest sequences."""

    def takes(self, task: Gradients) -> bool:
        """Return whether the kernel can compute the gradients: TMA must be able to read and write every tensor."""
        tensors = task.output, task.doutput, task.dq, task.dk, task.dv
        return takes_plain_problem(task.problem, narrowest=64, widest=128) and task.problem.describable(*tensors)

    def suits(self, task: Gradients) -> bool:
        """Return whether sequences are long enough."""
        problem = task.problem
        alone = problem.group == 1 and problem.head_block <= 64
        return min(problem.queries, problem.keys) >= (LEAST_ALONE if alone else LEAST_LENGTH)

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        return plan_hopper_backward(task)
