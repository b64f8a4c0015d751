"""The problems that both Hopper kernels take."""

from __future__ import annotations

from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.device.hopper import runs_on_hopper


def takes_plain_problem(problem: Problem, narrowest: int, widest: int) -> bool:
    """Return whether this is dense attention without extras, in half precision, on Hopper, with heads in
    blocks of `narrowest` to `widest` columns.

    A causal mask is allowed. A grid, packed sequences, and a limit on keys to the left are not.
    """
    if not runs_on_hopper(problem.plan):
        return False
    plain = problem.is_plain and not problem.packed and problem.per_member is None and problem.left == UNBOUNDED
    return plain and narrowest <= problem.head_block <= widest and problem.q.element_bytes == 2
