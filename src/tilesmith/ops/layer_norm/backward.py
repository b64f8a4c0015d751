"""The gradient as launches: forms and plans of the kernels in `backward_kernels.py`.

Around a residual branch, x also goes past the norm. `dsum`, the gradient that comes back on that path, is added to dx
in the same launch. If the branch ends with a bias, its gradient is Σ dsum over rows, which the same launch sums too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.norms.any_width import AnyWidthBackward
from tilesmith.ops.device.norms.backward import (
    BackwardConfig,
    NormGradient,
    OneSweep,
    Sweep,
    TwoSweeps,
    plan_gradient,
)
from tilesmith.ops.device.norms.team_backward import TeamBackward
from tilesmith.ops.device.partial_sums import partial_sum_config, plan_sum_of_partials
from tilesmith.ops.layer_norm.backward_kernels import (
    layer_norm_backward_kernel,
    layer_norm_backward_tiles_kernel,
    layer_norm_row_statistics_kernel,
    sum_several_partials_kernel,
)
from tilesmith.ops.rms_norm.backward import parameter_like
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan

Forms = tuple[AnyWidthBackward, OneSweep, TeamBackward, TwoSweeps]

COLUMNS_APART = BackwardConfig(num_warps=8, ROWS=32, BLOCK_SIZE=128, programs_per_multiprocessor=8)
# On an H200 in bf16: 221741×128 49.7 µs, 52.3 with 16 rows and 4 warps; 65536×256 34.9, 43; 16384×4096 103.6, 128 with
# four stages; 16384×8192 201 (4.0 TB/s), 245 with four.
SWEEPS = {
    64: Sweep(rows=16, warps=4, programs=4, stages=3),
    128: Sweep(rows=8, warps=2, programs=6, stages=3),
    256: Sweep(rows=4, warps=2, programs=6, stages=3),
    512: Sweep(rows=4, warps=2, programs=4, stages=3),
    1024: Sweep(rows=4, warps=4, programs=2, stages=3),
    2048: Sweep(rows=2, warps=4, programs=2, stages=3),
    4096: Sweep(rows=2, warps=8, programs=1, stages=3),
    8192: Sweep(rows=1, warps=8, programs=1, stages=3),
}
# With dsum, two rows of 2048 columns spill with Triton 3.9.
SWEEPS_WITH_DSUM = {**SWEEPS, 2048: Sweep(rows=1, warps=8, programs=2, stages=3)}
# With Σ dsum too, rows of 8192 columns in registers spill.
SWEEPS_WITH_DSUM_TOTAL = {columns: sweep for columns, sweep in SWEEPS_WITH_DSUM.items() if columns < 8192}
# Unaligned rows need an address for every load, and spill with as many rows as above.
UNALIGNED_SWEEPS_WITH_DSUM_TOTAL = {
    **SWEEPS_WITH_DSUM_TOTAL,
    64: Sweep(rows=8, warps=4, programs=4, stages=3),
    512: Sweep(rows=2, warps=2, programs=4, stages=3),
    1024: Sweep(rows=1, warps=4, programs=4, stages=3),
}


def forms(sweeps: dict[int, Sweep]) -> Forms:
    """Return the list of forms with this table of sweeps."""
    return (
        AnyWidthBackward(centre=True),
        OneSweep(layer_norm_backward_kernel, sweeps, COLUMNS_APART),
        TeamBackward(centre=True),
        TwoSweeps(
            layer_norm_row_statistics_kernel,
            layer_norm_backward_tiles_kernel,
            columns_apart=COLUMNS_APART,
        ),
    )


FORMS = forms(SWEEPS)
FORMS_WITH_DSUM = forms(SWEEPS_WITH_DSUM)
BRANCH_FORMS = forms(SWEEPS_WITH_DSUM_TOTAL)
UNALIGNED_BRANCH_FORMS = forms(UNALIGNED_SWEEPS_WITH_DSUM_TOTAL)


@kernels("layer_norm_backward")
def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: Tensor,
    weight_gradient: bool, bias_gradient: bool, dsum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dx + dsum, dw and db; dw and db are empty unless wanted. Only the shape and dtype of bias count.

    `statistics` are the forward's.
    """
    return (
        torch.empty_like(x),
        parameter_like(x, weight, weight_gradient),
        parameter_like(x, bias, bias_gradient),
    )


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand | None, bias: Operand | None, statistics: Operand,
    weight_gradient: bool, bias_gradient: bool, dsum: Operand | None = None,
) -> tuple[Operand, ...]:  # fmt: skip
    wanted = {"weight": weight if weight_gradient else None, "bias": bias if bias_gradient else None}
    sums = {name: plan.empty(one.shape, one.dtype) for name, one in wanted.items() if one is not None}
    given = NormGradient(dy, x, weight, dsum, statistics=statistics)
    dx = _plan_gradient(plan, FORMS_WITH_DSUM if dsum else FORMS, given, sums)
    return dx, *(sums.get(name) or plan.empty((0,), x.dtype) for name in wanted)


@kernels("layer_norm_branch_backward")
def branch_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, dsum: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dx + dsum, dw, db, and Σ dsum over rows. Only the shape and dtype of bias count."""
    return (
        torch.empty_like(x),
        parameter_like(x, weight, True),
        parameter_like(x, bias, True),
        x.new_empty(x.shape[-1:]),
    )


@branch_backward.plan
def plan_branch_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand, bias: Operand, statistics: Operand, dsum: Operand
) -> tuple[Operand, ...]:
    sums = {
        "weight": plan.empty(weight.shape, weight.dtype),
        "bias": plan.empty(bias.shape, bias.dtype),
        "dsum": plan.empty(x.shape[-1:], x.dtype),
    }
    strides = [stride for one in (dy, x, dsum) for stride in one.strides if stride > 1]
    unaligned = any(size % 16 for size in (x.shape[-1], *strides))
    given = NormGradient(dy, x, weight, dsum, statistics=statistics)
    return _plan_gradient(plan, UNALIGNED_BRANCH_FORMS if unaligned else BRANCH_FORMS, given, sums), *sums.values()


def _plan_gradient(plan: Plan, forms: Forms, given: NormGradient, sums: dict[str, Operand]) -> Operand:
    """Plan dx, and the sums over rows into `sums`. Return dx."""
    dx, partials = plan_gradient(plan, forms, given, list(sums))
    _plan_totals(plan, partials, sums, compute_dtype(given.x.dtype))
    return dx


def _plan_totals(plan: Plan, partials: dict[str, Operand], sums: dict[str, Operand], compute: tl.dtype) -> None:
    """Plan the totals of all partial sums in one launch."""
    if len(partials) < 2:
        for name, total in sums.items():
            plan_sum_of_partials(plan, partials[name], total, compute)
        return
    n_partials, n_columns = partials["weight"].shape
    config = partial_sum_config(plan, n_partials, n_columns)
    plan.launch(
        sum_several_partials_kernel, (triton.cdiv(n_columns, config.COLUMNS), len(sums)), config,
        weight_partials_ptr=partials["weight"], bias_partials_ptr=partials["bias"],
        dsum_partials_ptr=partials.get("dsum"), dweight_ptr=sums["weight"], dbias_ptr=sums["bias"],
        dsum_total_ptr=sums.get("dsum"), n_partials=n_partials, n_columns=n_columns, COMPUTE=compute,
    )  # fmt: skip
