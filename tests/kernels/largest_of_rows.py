# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""The largest element of some rows, and where it is: all that a spec may do without what most have.

Inputs in order instead of by name, an integer tensor and a number among them; two outputs, one of integers; no
gradient, no cost, a reference with other names for its arguments, and a kernel that is tuned.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith import Case, Spec


@triton.autotune(configs=[triton.Config({"ROWS": 1}), triton.Config({"ROWS": 2})], key=["columns"])
@triton.jit
def largest_kernel(
    x_ptr, rows_ptr, largest_ptr, place_ptr, offset, columns, row_stride, column_stride, BLOCK_SIZE: tl.constexpr, ROWS
):
    chosen = tl.program_id(0)
    row = tl.load(rows_ptr + chosen)
    offsets = tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + row * row_stride + offsets * column_stride, mask=offsets < columns, other=float("-inf"))
    place = tl.argmax(x, axis=0)
    tl.store(largest_ptr + chosen, tl.max(x, axis=0) + offset)
    tl.store(place_ptr + chosen, place)


def largest_of_rows(x: Tensor, rows: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    largest = torch.empty(len(rows), dtype=x.dtype, device=x.device)
    place = torch.empty(len(rows), dtype=torch.int64, device=x.device)
    block_size = triton.next_power_of_2(x.shape[1])
    largest_kernel[(len(rows),)](x, rows, largest, place, offset, x.shape[1], *x.stride(), block_size)
    return largest, place


def reference(matrix: Tensor, indices: Tensor, summand: float) -> tuple[Tensor, Tensor]:
    found = matrix[indices].max(dim=1)
    return found.values + summand, found.indices


def make_inputs(case: Case, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, float]:
    # A permutation of whole numbers has no two equal elements in any dtype, so that there is one right place.
    x = torch.randperm(case.rows * case.cols, device=device).view(case.rows, case.cols).to(dtype)
    return x, torch.arange(0, case.rows, 2, device=device), 1.0


SPEC = Spec(
    name="largest_of_rows",
    op=largest_of_rows,
    reference=reference,
    cases=[Case("odd", rows=5, cols=31)],
    make_inputs=make_inputs,
    differentiable=False,
)
