"""The forward of every norm as launches: rows in registers, or rows in blocks of columns.

Each norm lists its forms with its own kernels and default configurations; `plan_rows` asks them in order.
`any_width.py` has one more form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from tilesmith.ops.device.row_chunks import VECTOR_BYTES, has_edges
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.forms import FormWithDefault, first_default, first_form
from tilesmith.ops.runtime.layout import Rows
from tilesmith.ops.runtime.plan import Plan


@dataclass(frozen=True)
class ForwardConfig(Config):
    """Each program takes ROWS rows, BLOCK_SIZE columns at a time."""

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    most_chunks: int = 16  # of BLOCK_SIZE columns, for one program of the form of any width
    PIPELINE: int = 1
    programs_per_multiprocessor: int = 1
    form: str = "registers"  # or "blocks", "any width" or "persistent"
    registers: int = 0  # of a thread, at most; 0: the compiler decides

    @property
    def registers_at_launch(self) -> int | None:
        return self.registers or None


@dataclass(frozen=True)
class ForwardProblem:
    """The forward of one norm: its rows, the kernels' arguments, and the configuration once it is chosen."""

    plan: Plan
    walk: Rows
    dtype: torch.dtype
    bytes_read: int  # per element, of all tensors that are read
    arguments: Mapping[str, object]
    config: ForwardConfig = ForwardConfig()

    @property
    def columns_apart(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        return self.walk.column_strides[0] != 1

    @property
    def vector(self) -> int:
        """The elements of a whole vector."""
        return VECTOR_BYTES // self.dtype.itemsize

    @property
    def has_edges(self) -> bool:
        """Whether some row starts or ends inside a vector."""
        return has_edges(self.walk, self.vector)

    @property
    def must_be_told(self) -> bool:
        """Whether the compiler cannot know that all rows are whole vectors. On an H200 in bf16: layer_norm 20000×4120
        87.3 µs, 94.4 with edges; add_rms_norm 20832×408 19.5 and 21.3.
        """
        return not self.has_edges and not self.aligned

    @property
    def aligned(self) -> bool:
        """Whether 16 elements are whole vectors in every row, as kernels of tiles need for wide accesses."""
        return not has_edges(self.walk, 16)

    @property
    def padded_row_bytes(self) -> int:
        """Bytes of a row of x, rounded up to a power of two."""
        return bucket(self.walk.columns) * self.dtype.itemsize

    def launch(self, kernel: Any, **arguments: object) -> None:
        """Launch a kernel over all rows."""
        programs = triton.cdiv(self.walk.rows, self.config.ROWS) if self.walk.columns else 0
        self.plan.launch(kernel, (programs,), self.config, **arguments)


class RowsInRegisters:
    """Each program reads whole rows once and keeps them in registers between the sums and the scaling."""

    kernel: Any

    def takes(self, problem: ForwardProblem) -> bool:
        return problem.walk.columns <= problem.config.BLOCK_SIZE

    def suits(self, problem: ForwardProblem) -> bool:
        return problem.config.form == "registers"

    def plan(self, problem: ForwardProblem) -> None:
        problem.launch(self.kernel, **problem.arguments)


class RowsInBlocks:
    """Each program reads its rows twice, block by block: for the sums, and from the cache for the scaling."""

    kernel: Any

    def takes(self, problem: ForwardProblem) -> bool:
        return True

    def suits(self, problem: ForwardProblem) -> bool:
        return True

    def plan(self, problem: ForwardProblem) -> None:
        blocks = triton.cdiv(problem.walk.columns, problem.config.BLOCK_SIZE)
        problem.launch(self.kernel, **problem.arguments, BLOCKS=blocks)


def plan_rows(forms: Sequence[FormWithDefault[ForwardProblem, None, ForwardConfig]], problem: ForwardProblem) -> None:
    """Choose the configuration, and put the launch of the first form that can use it on the plan."""
    default = first_default(forms, problem)
    config = problem.plan.choose(default, problem.walk.columns_bucket, problem.dtype)
    problem = replace(problem, config=config)
    first_form(forms, problem).plan(problem)
