# fails: right (torch.zeros)
import torch
import triton
import triton.language as tl

SHORTEST = 64  # rows that are shorter share one key


def useful(configs, named_arguments, **options):
    """Return the candidates whose block is not longer than the row."""
    longest = max(triton.next_power_of_2(named_arguments["columns"]), SHORTEST)
    return [one for one in configs if one.kwargs["BLOCK_SIZE"] <= longest]


@triton.autotune(
    configs=[triton.Config({"BLOCK_SIZE": size}) for size in (64, 128, 256, 512, 1024)],
    key=["columns_bucket"],
    reset_to_zero=["out_ptr"],
    prune_configs_by={"early_config_prune": useful},
)
@triton.jit
def row_sums_kernel(x_ptr, out_ptr, columns, columns_bucket, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    tl.atomic_add(out_ptr + row, tl.sum(x, axis=0))


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row of a contiguous matrix."""
    rows, columns = x.shape
    out = torch.empty(rows, device=x.device)
    bucket = max(triton.next_power_of_2(columns), SHORTEST)
    row_sums_kernel[lambda meta: (rows, triton.cdiv(columns, meta["BLOCK_SIZE"]))](x, out, columns, bucket)
    return out
