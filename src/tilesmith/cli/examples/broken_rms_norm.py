"""A kernel with a subtle mistake, which `tilesmith check` finds.

RMSNorm without a weight: y = x / √(mean(x²) + eps). Columns beyond the end of a row wrap around to its beginning, so
every load stays inside the tensor without a mask. The loads are right, but the sum counts these columns twice.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith import Case, Spec


def reference(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@triton.jit
def broken_rms_norm_kernel(
    x_ptr, x_row_stride, x_column_stride, y_ptr, n_columns, eps, BLOCK_SIZE: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_SIZE)
    x_columns = (columns % n_columns) * x_column_stride
    x = tl.load(x_ptr + row * x_row_stride + x_columns).to(tl.float32)
    # The mistake: columns that wrap around are counted twice. Right: tl.sum(tl.where(columns < n_columns, x * x, 0.0)).
    sum_of_squares = tl.sum(x * x)
    y = x * tl.rsqrt(sum_of_squares / n_columns + eps)
    tl.store(y_ptr + row * n_columns + columns, y, mask=columns < n_columns)


def broken_rms_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, columns = x.shape
    block_size = triton.next_power_of_2(columns)
    broken_rms_norm_kernel[(rows,)](x, *x.stride(), y, columns, eps, BLOCK_SIZE=block_size)
    return y


def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    return {"x": torch.randn(case.rows, case.cols, dtype=dtype, device=device)}


SPEC = Spec(
    name="broken_rms_norm",
    op=broken_rms_norm,
    reference=reference,
    # A power of two alone would not show the mistake: no column wraps around.
    cases=[Case("power-of-two", rows=4, cols=256), Case("odd", rows=4, cols=200)],
    make_inputs=make_inputs,
    dtypes=(torch.float32,),
    differentiable=False,
)
