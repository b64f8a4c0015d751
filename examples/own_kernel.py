"""Your own kernel, from its meaning to a benchmark: y = x + scale · r, a residual connection with a learned scale.

Moves three elements per output (read x and r, write y) and does two flops on each: memory-bound, so the kernel touches
each byte once.

    python examples/own_kernel.py                       # check, inspect and bench from Python
    tilesmith check examples/own_kernel.py              # the same from the command line
    tilesmith bench examples/own_kernel.py --device h200
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import tilesmith as ts
from tilesmith import Case, Cost, Spec, Work


def reference(x: Tensor, r: Tensor, scale: Tensor) -> Tensor:
    return x + scale * r


@triton.jit
def scaled_residual_kernel(x_ptr, r_ptr, scale_ptr, y_ptr, n_elements, n_columns, BLOCK_SIZE: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE
    offsets = start + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    r = tl.load(r_ptr + offsets, mask=mask).to(tl.float32)
    scale = tl.load(scale_ptr + offsets % n_columns, mask=mask).to(tl.float32)
    tl.store(y_ptr + offsets, (x + scale * r).to(y_ptr.dtype.element_ty), mask=mask)


def scaled_residual(x: Tensor, r: Tensor, scale: Tensor, BLOCK_SIZE: int = 1024) -> Tensor:
    """Return x + scale · r; scale has one element per column."""
    if scale.shape != x.shape[-1:]:
        raise ValueError(f"scaled_residual: scale has shape {tuple(scale.shape)}, but x has {x.shape[-1]} columns")
    x, r, scale = x.contiguous(), r.contiguous(), scale.contiguous()  # the kernel walks memory element by element
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), BLOCK_SIZE),)
    scaled_residual_kernel[grid](x, r, scale, y, x.numel(), x.shape[-1], BLOCK_SIZE=BLOCK_SIZE)
    return y


def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Any]:
    x, r = (torch.randn(case.rows, case.cols, dtype=dtype, device=device) for _ in range(2))
    return {"x": x, "r": r, "scale": torch.randn(case.cols, dtype=dtype, device=device)}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    return Cost(forward=Work(bytes=(3 * elements + case.cols) * dtype.itemsize, flops=2 * elements))


SPEC = Spec(
    name="scaled_residual",
    op=scaled_residual,
    reference=reference,
    formula="y = x + scale · r",
    cases=[
        Case("one", rows=1, cols=1),
        Case("odd", rows=7, cols=301),
        Case("past-a-block", rows=5, cols=1025),
        Case("large", rows=16384, cols=4096),
    ],
    make_inputs=make_inputs,
    cost=cost,
    differentiable=False,  # examples/custom_autograd.py has a gradient
    rivals={"torch": reference},
)


def main() -> None:
    print(ts.lab.check(SPEC))
    inputs = make_inputs(Case("shown", rows=64, cols=1024), torch.float32, "cpu")
    print(ts.lab.inspect(lambda: scaled_residual(**inputs)))
    print(ts.lab.bench(SPEC, cases=["large"]))


if __name__ == "__main__":
    main()
