"""The two forms of a norm's forward: rows in registers, or rows in blocks of columns.

Each norm names its kernels and configurations; both forms launch in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton

from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.layout import Rows
from tilesmith.ops.runtime.plan import Plan


@dataclass(frozen=True)
class ForwardConfig(Config):
    """Each program takes ROWS rows, BLOCK_SIZE columns at a time."""

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    form: str = "registers"  # or "blocks"


@dataclass(frozen=True)
class ForwardProblem:
    """The forward of one norm: its rows, and the kernels' arguments."""

    walk: Rows
    dtype: torch.dtype
    bytes_read: int  # per element, of all tensors that are read
    arguments: Mapping[str, object]

    @property
    def columns_apart(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        return self.walk.column_strides[0] != 1

    @property
    def padded_row_bytes(self) -> int:
        """Bytes of a row of x, rounded up to a power of two."""
        return bucket(self.walk.columns) * self.dtype.itemsize

    def bucket(self, default: ForwardConfig) -> tuple[object, ...]:
        return self.walk.columns_bucket, self.dtype

    def grid(self, config: ForwardConfig) -> tuple[int]:
        return (triton.cdiv(self.walk.rows, config.ROWS) if self.walk.columns else 0,)


class RowsInRegisters:
    """Each program reads whole rows once and keeps them in registers between the sums and the scaling."""

    kernel: Any

    def takes(self, problem: ForwardProblem, config: ForwardConfig) -> bool:
        return config.form == "registers" and problem.walk.columns <= config.BLOCK_SIZE

    def plan(self, plan: Plan, problem: ForwardProblem, config: ForwardConfig) -> None:
        plan.launch(self.kernel, problem.grid(config), config, **problem.arguments)


class RowsInBlocks:
    """Each program reads its rows twice, block by block: for the sums, and from the cache for the scaling."""

    kernel: Any

    def suits(self, problem: ForwardProblem) -> bool:
        return True

    def takes(self, problem: ForwardProblem, config: ForwardConfig) -> bool:
        return True

    def plan(self, plan: Plan, problem: ForwardProblem, config: ForwardConfig) -> None:
        blocks = triton.cdiv(problem.walk.columns, config.BLOCK_SIZE)
        plan.launch(self.kernel, problem.grid(config), config, **problem.arguments, BLOCKS=blocks)
