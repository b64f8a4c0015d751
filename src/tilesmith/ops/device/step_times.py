"""How long tiles of the Hopper kernels take, in clocks: what tiles are chosen by.

A step multiplies rows × columns over a depth. It takes as long as the longest of: the tensor cores, the loads of both
operands, the latency of a load shared by all stages but one, and narrow rows, which TMA loads one by one. The numbers
are fitted to 202 timings of an H200 (`benchmarks/tuning/conv2d_on_hopper-h200.json`). The tiles that the model chooses
take 1.02 times as long as the fastest there on average, 1.16 times at worst.
"""

from __future__ import annotations

FLOPS = 3680.0  # of a clock
LOADED_BYTES = 83.0  # of a clock, beside the clocks of a step
STEP = 250.0
LATENCY = 1100.0
NARROW_ROW = 5.7  # where rows in memory are no multiple of 32 bytes
EPILOGUE, STORED_BYTES = 670.0, 17.0


def step_clocks(rows: int, columns: int, depth: int, stages: int, narrow_rows: int = 0) -> float:
    """Return the clocks of one step with operands of 16 bits. `narrow_rows`: of both operands, in memory."""
    return max(
        2 * rows * columns * depth / FLOPS,
        2 * (rows + columns) * depth / LOADED_BYTES + STEP,
        LATENCY / (stages - 1),
        NARROW_ROW * narrow_rows,
    )


def store_clocks(stored_bytes: int) -> float:
    """Return the clocks from the last step of a tile to the first one of the next."""
    return EPILOGUE + stored_bytes / STORED_BYTES
