# fails: right (the first comes first)
import torch
import triton
import triton.language as tl


@triton.jit
def top_k_kernel(x_ptr, values_ptr, indices_ptr, columns, k, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=float("-inf"))
    for rank in range(k):
        index = tl.argmax(x, axis=0, tie_break_left=False)
        tl.store(values_ptr + row * k + rank, tl.max(x, axis=0))
        tl.store(indices_ptr + row * k + rank, index)
        x = tl.where(column == index, float("-inf"), x)


def top_k(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest elements of each row, in falling order, and their columns (int32)."""
    rows, columns = x.shape
    values = torch.empty((rows, k), dtype=x.dtype, device=x.device)
    indices = torch.empty((rows, k), dtype=torch.int32, device=x.device)
    top_k_kernel[(rows,)](x, values, indices, columns, k, BLOCK_SIZE=triton.next_power_of_2(columns))
    return values, indices
