# mypy: ignore-errors
"""A persistent softmax: the number of programs follows from the registers of the compiled kernel."""

import torch
import triton
import triton.language as tl
from triton.runtime import driver

DEVICE = triton.runtime.driver.active.get_active_torch_device()


def is_hip():
    return triton.runtime.driver.active.get_current_target().backend == "hip"


@triton.jit
def softmax_kernel(
    output_ptr, input_ptr, input_row_stride, output_row_stride, n_rows, n_cols, BLOCK_SIZE: tl.constexpr,
    num_stages: tl.constexpr,
):  # fmt: skip
    row_start = tl.program_id(0)
    row_step = tl.num_programs(0)
    for row in tl.range(row_start, n_rows, row_step, num_stages=num_stages):
        columns = tl.arange(0, BLOCK_SIZE)
        mask = columns < n_cols
        values = tl.load(input_ptr + row * input_row_stride + columns, mask=mask, other=-float("inf"))
        numerator = tl.exp(values - tl.max(values, axis=0))
        tl.store(output_ptr + row * output_row_stride + columns, numerator / tl.sum(numerator, axis=0), mask=mask)


properties = driver.active.utils.get_device_properties(DEVICE.index)
NUM_SM = properties["multiprocessor_count"]
NUM_REGS = properties["max_num_regs"]
SIZE_SMEM = properties["max_shared_mem"]
WARP_SIZE = properties["warpSize"]
assert not is_hip()


def softmax(x):
    n_rows, n_cols = x.shape
    block = triton.next_power_of_2(n_cols)
    num_warps, num_stages = 8, 4 if SIZE_SMEM > 200000 else 2
    y = torch.empty_like(x)
    kernel = softmax_kernel.warmup(
        y, x, x.stride(0), y.stride(0), n_rows, n_cols, BLOCK_SIZE=block, num_stages=num_stages, num_warps=num_warps,
        grid=(1,),
    )  # fmt: skip
    kernel._init_handles()
    occupancy = NUM_REGS // (kernel.n_regs * WARP_SIZE * num_warps)
    occupancy = min(occupancy, SIZE_SMEM // max(1, kernel.metadata.shared))
    num_programs = min(NUM_SM * occupancy, n_rows)
    kernel[(num_programs, 1, 1)](y, x, x.stride(0), y.stride(0), n_rows, n_cols, block, num_stages)
    return y


x = torch.randn(83, 781, device=DEVICE)
torch.testing.assert_close(softmax(x), torch.softmax(x, axis=1))
stream = getattr(torch, DEVICE.type).Stream()
getattr(torch, DEVICE.type).set_stream(stream)
print(triton.testing.do_bench(lambda: softmax(x)))
