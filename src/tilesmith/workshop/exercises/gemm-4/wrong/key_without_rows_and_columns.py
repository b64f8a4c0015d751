# fails: goals (is the same for two sizes)
from typing import Any

import torch
import triton
import triton.language as tl

PROGRAMS_WANTED = 4  # one per multiprocessor of a small GPU
CONFIGURATIONS = [
    triton.Config({"TILE_ROWS": side, "TILE_COLUMNS": side, "TILE_INNER": 32}, num_stages=stages, num_warps=4)
    for side in (16, 32, 64)
    for stages in (2, 3)
]


def programs(configuration: triton.Config, rows: int, columns: int) -> int:
    """Return how many tiles of this configuration the result has."""
    tile = configuration.kwargs
    return triton.cdiv(rows, tile["TILE_ROWS"]) * triton.cdiv(columns, tile["TILE_COLUMNS"])


def worth_measuring(
    configurations: list[triton.Config], arguments: dict[str, Any], **options: Any
) -> list[triton.Config]:
    """Return the configurations that can be fastest on these sizes."""
    rows, columns = arguments["rows"], arguments["columns"]

    def rank(configuration: triton.Config) -> tuple[int, int]:
        """Return a sort key: first the idle multiprocessors, then the programs, because more programs share less."""
        number = programs(configuration, rows, columns)
        return max(0, PROGRAMS_WANTED - number), number

    best = min(map(rank, configurations))
    return [one for one in configurations if rank(one) == best]


@triton.autotune(
    configs=CONFIGURATIONS,
    key=["inner"],
    prune_configs_by={"early_config_prune": worth_measuring},
)
@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    out_ptr,
    rows,
    inner,
    columns,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_INNER: tl.constexpr,
):
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    accumulator = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
    for start in range(0, inner, TILE_INNER):
        step = start + tl.arange(0, TILE_INNER)
        a_mask = (row < rows)[:, None] & (step < inner)[None, :]
        b_mask = (step < inner)[:, None] & (column < columns)[None, :]
        a = tl.load(a_ptr + row[:, None] * inner + step[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + step[:, None] * columns + column[None, :], mask=b_mask, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out_ptr + row[:, None] * columns + column[None, :], accumulator, mask=mask)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a · b for contiguous matrices, with the fastest measured tiles."""
    rows, inner = a.shape
    columns = b.shape[1]
    out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(rows, chosen["TILE_ROWS"]), triton.cdiv(columns, chosen["TILE_COLUMNS"])

    matmul_kernel[grid](a, b, out, rows, inner, columns)
    return out
