"""The launch of `backward.py`: which problems it takes, and the order of its programs."""

from __future__ import annotations

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

    GQA, in ascending order, with sets of 16, 32 and 64 key heads. 32 heads on 8, causal, groups split into 1,024
    programs: b4 s2048 d64 307, 353, 377, d128 396, 434, 412; into 256: b8 s512 d64 172, 183, 224. In descending order,
    by an older kernel: b4 s2048 d64 313 in place of 344.
    """
    if problem.group > 1:
        if problem.queries >= LONG:
            return HopperBackwardConfig(ASCENDING=True, set_heads=32, least_programs=MANY_PROGRAMS)
        return HopperBackwardConfig(ASCENDING=True, set_heads=64)
    blocks: int = triton.cdiv(problem.keys, int(KEYS.value))
    return HopperBackwardConfig(set_heads=min(max(256 // blocks, 1), 128 if problem.head_block <= 64 else 32))


LEAST_LENGTH = 129
"""The fewest queries and keys. In µs on an H200, and of the portable kernels: b16 h20 s159 d80 causal 66.4 (90.6), b32
s200 d128 causal, 16 heads on 4: 107.7 (155.1), b64 h12 s197 d64 full 141 (188), b8 h16 s192 d64 causal 24.3 (23.1). Up
to 128 keys are one portable kernel: b32 h16 s128 d64 full 40.5 (39.9)."""

LONG, MANY_PROGRAMS = 1024, 1024
"""From so many queries on, GQA pays for splitting groups into so many programs. On an H200, backward in µs with one
part, 256, 512 and 1,024 programs, and PyTorch: 32 heads on 4 key heads, s8192 d128 3664, 3611, 3146, 2769, 2633; on 8,
s2048 d128 348, 275, 245, 244, 266; 71 heads on one, b6 s2050 d128 5708, 5420, 5427, 5373, 5282. Shorter, the sums cost
more: b8, 32 heads on 8, s512 d64 117, 117, 130, 147, 152."""


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
    """Hopper, half precision, long sequences."""

    def takes(self, task: Gradients) -> bool:
        """Return whether the kernel can compute the gradients: TMA must be able to read and write every tensor."""
        tensors = task.output, task.doutput, task.dq, task.dk, task.dv
        return takes_plain_problem(task.problem, narrowest=64, widest=128) and task.problem.describable(*tensors)

    def suits(self, task: Gradients) -> bool:
        """Return whether sequences are long enough."""
        return min(task.problem.queries, task.problem.keys) >= LEAST_LENGTH

    def plan(self, task: Gradients) -> tuple[Operand, ...]:
        return plan_hopper_backward(task)
