"""One call of attention as the planners see it: dense tensors, packed sequences or a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import triton.language as tl

from tilesmith.ops.attention.device.tiles import STATISTICS_UNIT as UNIT
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.layout import NotWalkable
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import product_precision

Strides = tuple[int, ...]
STATISTICS_UNIT = int(UNIT.value)
SMALLEST_BLOCK = 16  # the smallest side of a tile that tl.dot takes
LARGEST_BLOCK = 256
FAR = 2**30  # a window wider than any sequence: causal and full attention share their compiled code


def lse_shape(q_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of log₂ Σ 2^score, which the backward needs: one number per query."""
    return tuple(q_shape[:-1]) if len(q_shape) > 3 else (q_shape[1], q_shape[0])


class Tiles(NamedTuple):
    """A tile of scores, and the warps and pipeline stages of its kernel."""

    queries: int
    keys: int
    warps: int
    stages: int


class TileConfig(Protocol):
    """The fields that the configurations of all kernels over queries and keys share."""

    @property
    def BLOCK_QUERIES(self) -> int: ...  # as kernels call it

    @property
    def BLOCK_KEYS(self) -> int: ...

    @property
    def described(self) -> bool: ...

    @property
    def bf16x3(self) -> str: ...


@dataclass(frozen=True)
class Problem:
    """One call of attention on the plan's GPU.

    - Dense: q, k, v are [batch, heads, length, head size].
    - Packed, with starts: [total length, heads, head size].
    - A grid: [batch, sequences, heads, length, head size], with a mask [batch, sequences, keys] and a bias
      [batch, heads, queries, keys].
    """

    plan: Plan
    q: Operand
    k: Operand
    v: Operand
    bias: Operand | None = None
    mask: Operand | None = None
    seed: Operand | None = None
    query_starts: Operand | None = None
    key_starts: Operand | None = None
    left: int = UNBOUNDED
    right: int = UNBOUNDED
    scale: float = 1.0
    softcap: float = 0.0
    dropout: float = 0.0
    tf32: bool = False

    @property
    def packed(self) -> bool:
        return self.query_starts is not None

    @property
    def sequences(self) -> int:
        if self.query_starts is not None:
            return self.query_starts.shape[0] - 1
        return math.prod(self.q.shape[:-3])

    @property
    def per_member(self) -> int | None:
        """Return how many sequences a member of the batch has in a grid; None if this is no grid."""
        return self.q.shape[1] if len(self.q.shape) == 5 else None

    @property
    def heads(self) -> int:
        return self.q.shape[1 if self.packed else -3]

    @property
    def key_heads(self) -> int:
        return self.k.shape[1 if self.packed else -3]

    @property
    def group(self) -> int:
        """Return how many heads of q share one head of k and v."""
        return self.heads // max(self.key_heads, 1)

    @property
    def queries(self) -> int:
        """Return the rows of q in each sequence, or in all sequences together if they are packed."""
        return self.q.shape[0 if self.packed else -2]

    @property
    def keys(self) -> int:
        return self.k.shape[0 if self.packed else -2]

    @property
    def head_size(self) -> int:
        return self.q.shape[-1]

    @property
    def head_block(self) -> int:
        return max(bucket(self.head_size), SMALLEST_BLOCK)

    @property
    def is_plain(self) -> bool:
        """Return whether a score is only a scaled product, so that a tile of scores needs few registers."""
        return self.bias is None and self.mask is None and self.seed is None and not self.softcap

    @property
    def only_adds_to_scores(self) -> bool:
        """Return whether scores have neither soft cap nor dropout."""
        return self.seed is None and not self.softcap

    @property
    def has_light_scores(self) -> bool:
        """Return whether scores have a bias or a mask and no more, with narrow heads in half precision."""
        adds_only = not self.is_plain and self.only_adds_to_scores
        return adds_only and self.head_block <= 64 and self.q.element_bytes == 2

    @property
    def sequences_per_bias(self) -> int:
        """Return how many sequences share a bias."""
        return self.sequences // max(self.bias_shape[0], 1)

    @property
    def shares_bias(self) -> bool:
        """Return whether sequences of a grid share a bias with an element for every head, query and key.

        Scores must be light. Attention that is not over a grid may be too long for any matrix of scores in memory.
        """
        is_grid = self.per_member is not None
        whole = is_grid and self.bias is not None and self.bias_shape[1:] == (self.heads, self.queries, self.keys)
        sees_all = self.left == self.right == UNBOUNDED and not self.packed
        return whole and sees_all and self.group == 1 and self.has_light_scores and self.sequences_per_bias > 1

    @property
    def compute(self) -> tl.dtype:
        return compute_dtype(self.q.dtype)

    @property
    def statistics_dtype(self) -> torch.dtype:
        """Return the dtype of lse, δ and partial sums."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def strides(self, operand: Operand) -> Strides:
        """Return the strides from sequence to sequence, head to head, row to row and column to column.

        In a grid another stride comes first: from member to member of the batch.
        """
        if not self.packed:
            return operand.strides
        row, head, column = operand.strides
        return 0, head, row, column

    @property
    def lse_shape(self) -> tuple[int, ...]:
        return lse_shape(self.q.shape)

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """Return the shape of lse and δ for the kernels of the backward: two numbers per query, in whole units."""
        heads = (self.heads,) if self.packed else (self.sequences, self.heads)
        return (*heads, 2, -(-self.queries // STATISTICS_UNIT) * STATISTICS_UNIT)

    def blocks(self, length: int, block: int) -> int:
        """Return how many programs cover the rows of one head in all sequences."""
        if self.packed:
            return length // block + self.sequences if self.sequences else 0
        return self.sequences * -(-length // block)

    def describable(self, *others: Operand) -> bool:
        """Return whether the GPU has TMA, and TMA can walk q, k, v and the others."""
        target = self.plan.architecture.target
        has_engine = target.startswith("cuda") and int(target.removeprefix("cuda:")) >= 90
        return has_engine and all(tensor.describable() for tensor in (self.q, self.k, self.v, *others))

    def tiles(self, rows: Mapping[str, int], described: bool, **others: Operand) -> tuple[dict[str, object], str]:
        """Return the kernel's arguments for the tensors that it walks in tiles, and WALK.

        `rows` says how many rows a tile of each tensor has: of q, k and v, and of the others.
        """
        tensors = {"q": self.q, "k": self.k, "v": self.v, **others}
        tensors = {name: tensors[name] for name in rows}
        arguments: dict[str, object] = {f"{name}_strides": self.strides(one) for name, one in tensors.items()}
        in_units = all(tensor.describable() for tensor in tensors.values())
        if described and in_units:
            walk = "packed" if self.packed else "described"
        else:
            steps = [(rows[name], self.strides(one)) for name, one in tensors.items()]
            furthest = max(count * strides[-2] + self.head_block * strides[-1] for count, strides in steps)
            known = all(stride % 16 == 0 for _, strides in steps for stride in strides[:-1])
            walk = "far" if furthest >= 2**31 else "aligned" if in_units and not known else "near"
        for name, tensor in tensors.items():
            block = (*(1,) * (len(tensor.shape) - 2), rows[name], self.head_block)
            arguments[f"{name}_ptr"] = tensor.descriptor(block) if walk == "described" else tensor
        return arguments, walk

    @property
    def precision(self) -> str:
        return product_precision(self.plan, self.q.dtype, self.tf32)

    @property
    def is_exact(self) -> bool:
        """Return whether this is single precision without tf32."""
        return self.q.dtype == torch.float32 and not self.tf32

    def gains_from_splitting(self, described: bool) -> bool:
        """Return whether `split_operands.py` splits exact single precision, rather than the compiler.

        The compiler splits both operands of every product in registers. That leaves too few registers for the tile
        sizes at which Hopper's tensor cores are fast. Ours also exceeds the register budget with soft cap or dropout,
        and where TMA cannot load the parts.
        """
        on_hopper = self.plan.architecture.target == "cuda:90" and self.plan.device.type != "cpu"
        has_room = self.head_block <= 32 or (self.head_block <= 64 and not self.gathers_bias)
        return self.is_exact and on_hopper and described and has_room and self.only_adds_to_scores

    @property
    def visits_are_few(self) -> bool:
        """Return whether so few queries use a tile of keys that splitting it on load beats storing its parts."""
        return self.queries * self.group <= 256

    @property
    def sizes(self) -> tuple[object, ...]:
        """Return the sizes that a tuned configuration is stored under."""
        exactness = ("tf32",) if self.tf32 else ()
        return self.head_block, bucket(self.queries), bucket(self.keys), self.q.dtype, *exactness

    def arguments(self) -> dict[str, object]:
        """Return the arguments that every kernel takes besides its tiles."""
        return {
            "mask_ptr": self.mask, "seed_ptr": self.seed,
            "query_starts_ptr": self.query_starts, "key_starts_ptr": self.key_starts,
            "bias_strides": self.bias_strides(), "mask_strides": self.mask.strides if self.mask is not None else (0, 0),
            "n_sequences": self.sequences, "per_member": self.per_member, "n_heads": self.heads, "group": self.group,
            "query_rows": self.queries, "key_rows": self.keys,
            "left": None if self.left == UNBOUNDED else self.left,
            "right": FAR if self.right == UNBOUNDED else self.right,
            "scale": float(self.scale), "softcap": float(self.softcap) or None,
            "drop_below": int(self.dropout * 2**31), "keep_scale": 1 / (1 - self.dropout),
            "HEAD": self.head_size, "BLOCK_HEAD": self.head_block, "COMPUTE": self.compute,
        }  # fmt: skip

    @property
    def bias_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of the bias in four dimensions; missing ones are 1."""
        shape = self.bias.shape if self.bias is not None else ()
        return (*(1,) * (4 - len(shape)), *shape)  # type: ignore[return-value]  # four by construction

    def bias_tiles(self, config: TileConfig) -> dict[str, object]:
        """Return the kernel's arguments for the bias: a descriptor where TMA can walk it, else a pointer."""
        walked = self._bias_of_own_matrices()
        if walked is None or not config.described or not walked.describable():
            return {"bias_ptr": self.bias, "BIAS_DESCRIBED": False}
        return {"bias_ptr": walked.descriptor((1, 1, config.BLOCK_QUERIES, config.BLOCK_KEYS)), "BIAS_DESCRIBED": True}

    @property
    def has_describable_bias(self) -> bool:
        """Return whether TMA can load tiles of the bias."""
        walked = self._bias_of_own_matrices()
        return walked is not None and walked.describable()

    @property
    def gathers_bias(self) -> bool:
        """Return whether there is a bias that TMA cannot load, so that its addresses take registers."""
        return self.bias is not None and not self.has_describable_bias

    def _bias_of_own_matrices(self) -> Operand | None:
        """Return the bias in four dimensions, without broadcasting; None if queries or keys share elements."""
        if self.bias is None or self.packed:
            return None
        of_sequence, of_head, of_row, of_column = self.bias_strides()
        sequences, heads, rows, keys = self.bias_shape
        if rows != self.queries or keys != self.keys or of_row == 0 or of_column != 1:
            return None
        whole = of_row * rows  # the stride of a dimension of one, in units that TMA takes
        shape = (sequences if of_sequence else 1, heads if of_head else 1, rows, keys)
        return self.bias.seen_as(shape, (of_sequence or whole, of_head or whole, of_row, of_column))

    def bias_strides(self) -> Strides:
        """Return the strides of the bias as if it were expanded to [batch, heads, queries, keys]."""
        if self.bias is None:
            return 0, 0, 0, 0
        steps = [0 if size == 1 else step for size, step in zip(self.bias.shape, self.bias.strides, strict=True)]
        if LARGEST_BLOCK * sum(steps[-2:]) >= 2**31:
            raise NotWalkable(f"a bias of strides {self.bias.strides} is wider than 32 bits count within a tile")
        return (*(0,) * (4 - len(steps)), *steps)


@dataclass(frozen=True)
class Gradients:
    """One backward: the forward's problem, what the backward reads, and the gradients that it writes.

    `lse` is log₂ Σ 2^score of each query. `wants_dbias` is false without a bias.
    """

    problem: Problem
    doutput: Operand
    output: Operand
    lse: Operand
    wants_dbias: bool
    dq: Operand
    dk: Operand
    dv: Operand
