"""One call of attention as its planners see it: dense tensors or packed sequences, in one form."""

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
SMALLEST_BLOCK = 16  # what tl.dot takes at least along each side
LARGEST_BLOCK = 256
FAR = 2**30  # further than any key is to the right: causal and full attention share their compiled code


def lse_shape(q_shape: Sequence[int]) -> tuple[int, ...]:
    """That of what is kept for the backward: one number per query."""
    return tuple(q_shape[:-1]) if len(q_shape) > 3 else (q_shape[1], q_shape[0])


class Tiles(NamedTuple):
    """A tile of scores, and the warps and pipeline stages of its kernel."""

    queries: int
    keys: int
    warps: int
    stages: int


class TileConfig(Protocol):
    """What the configurations of all kernels that go through queries and keys have."""

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
    """q, k, v are [batch, heads, length, head size]; or, with starts, [total length, heads, head size].

    Or they are grids: [batch, sequences, heads, length, head size], with a mask [batch, sequences, keys] and a bias
    [batch, heads, queries, keys].
    """

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
        """How many sequences of a grid share a bias; None where this is no grid."""
        return self.q.shape[1] if len(self.q.shape) == 5 else None

    @property
    def heads(self) -> int:
        return self.q.shape[1 if self.packed else -3]

    @property
    def key_heads(self) -> int:
        return self.k.shape[1 if self.packed else -3]

    @property
    def group(self) -> int:
        """How many heads of q share one of k and v."""
        return self.heads // max(self.key_heads, 1)

    @property
    def queries(self) -> int:
        """Rows of q in each sequence, or in all of them together where they are packed."""
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
        """Whether a score is a scaled product and nothing more, so that a tile of them needs few registers."""
        return self.bias is None and self.mask is None and self.seed is None and not self.softcap

    @property
    def only_adds_to_scores(self) -> bool:
        """Whether no more than a bias and a mask comes to the scores."""
        return self.seed is None and not self.softcap

    @property
    def has_light_scores(self) -> bool:
        """Whether a bias or a mask and no more comes to the scores of narrow heads of two bytes."""
        adds_only = not self.is_plain and self.only_adds_to_scores
        return adds_only and self.head_block <= 64 and self.q.element_bytes == 2

    @property
    def sequences_per_bias(self) -> int:
        """How many sequences share a bias."""
        return self.sequences // max(self.bias_shape[0], 1)

    @property
    def shares_bias(self) -> bool:
        """Whether sequences of a grid share a bias, of which every head, query and key has its own part, and have light
        scores. Attention that is not over a grid may be so long that no matrix of scores should ever be in memory."""
        is_grid = self.per_member is not None
        whole = is_grid and self.bias is not None and self.bias_shape[1:] == (self.heads, self.queries, self.keys)
        sees_all = self.left == self.right == UNBOUNDED and not self.packed
        return whole and sees_all and self.group == 1 and self.has_light_scores and self.sequences_per_bias > 1

    @property
    def compute(self) -> tl.dtype:
        return compute_dtype(self.q.dtype)

    @property
    def statistics_dtype(self) -> torch.dtype:
        """What is kept per query is kept in this."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def strides(self, operand: Operand) -> Strides:
        """From sequence to sequence, head to head, row to row, column to column; of a grid first from member to member
        of the batch."""
        if not self.packed:
            return operand.strides
        row, head, column = operand.strides
        return 0, head, row, column

    @property
    def lse_shape(self) -> tuple[int, ...]:
        return lse_shape(self.q.shape)

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """That of what the kernels of the backward tell each other: two numbers per query, in whole units."""
        heads = (self.heads,) if self.packed else (self.sequences, self.heads)
        return (*heads, 2, -(-self.queries // STATISTICS_UNIT) * STATISTICS_UNIT)

    def blocks(self, length: int, block: int) -> int:
        """How many programs cover the rows of one head in all sequences."""
        if self.packed:
            return length // block + self.sequences if self.sequences else 0
        return self.sequences * -(-length // block)

    def describable(self, plan: Plan, *others: Operand) -> bool:
        """Whether the copy engine, if there is one, can walk q, k, v and these."""
        target = plan.architecture.target
        has_engine = target.startswith("cuda") and int(target.removeprefix("cuda:")) >= 90
        return has_engine and all(tensor.describable() for tensor in (self.q, self.k, self.v, *others))

    def tiles(self, rows: Mapping[str, int], described: bool, **others: Operand) -> tuple[dict[str, object], str]:
        """The kernel's arguments for the tensors that it goes through in tiles, and how it is to walk them.

        `rows` says how many a tile of each has: of q, k and v, and of others.
        """
        tensors = {"q": self.q, "k": self.k, "v": self.v, **others}
        tensors = {name: tensors[name] for name in rows}
        arguments: dict[str, object] = {f"{name}_strides": self.strides(one) for name, one in tensors.items()}
        if described and all(tensor.describable() for tensor in tensors.values()):
            walk = "packed" if self.packed else "described"
        else:
            steps = [(rows[name], self.strides(one)) for name, one in tensors.items()]
            furthest = max(count * strides[-2] + self.head_block * strides[-1] for count, strides in steps)
            walk = "near" if furthest < 2**31 else "far"
        for name, tensor in tensors.items():
            block = (*(1,) * (len(tensor.shape) - 2), rows[name], self.head_block)
            arguments[f"{name}_ptr"] = tensor.descriptor(block) if walk == "described" else tensor
        return arguments, walk

    def precision(self, plan: Plan) -> str:
        return product_precision(plan, self.q.dtype, self.tf32)

    @property
    def is_exact(self) -> bool:
        """Whether this is single precision of which nothing may be left out."""
        return self.q.dtype == torch.float32 and not self.tf32

    def gains_from_splitting(self, plan: Plan, described: bool) -> bool:
        """Whether exact single precision is to be split by `planes.py` rather than by the compiler.

        That one splits both operands of a product in registers at every visit, of which there are too few for tiles
        that Hopper's tensor cores are quick with. Ours are too few as well where scores are bent or dropped, and where
        the copy engine cannot bring the planes.
        """
        on_hopper = plan.architecture.target == "cuda:90" and plan.device.type != "cpu"
        has_room = self.head_block <= 32 or (self.head_block <= 64 and not self.gathers_bias)
        return self.is_exact and on_hopper and described and has_room and self.only_adds_to_scores

    @property
    def visits_are_few(self) -> bool:
        """Whether so few tiles of queries come by a tile of keys that splitting it anew for each costs less than to
        store its planes beforehand."""
        return self.queries * self.group <= 256

    @property
    def sizes(self) -> tuple[object, ...]:
        """What a configuration that was tuned holds for."""
        exactness = ("tf32",) if self.tf32 else ()
        return self.head_block, bucket(self.queries), bucket(self.keys), self.q.dtype, *exactness

    def arguments(self) -> dict[str, object]:
        """What every kernel takes beside its tiles."""
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
        """Of four dimensions: those that the bias does not have are one."""
        shape = self.bias.shape if self.bias is not None else ()
        return (*(1,) * (4 - len(shape)), *shape)  # type: ignore[return-value]  # four by construction

    def bias_tiles(self, config: TileConfig) -> dict[str, object]:
        """The bias as a kernel goes through it: by the copy engine where that can walk it, else by pointers."""
        walked = self._bias_of_own_matrices()
        if walked is None or not config.described or not walked.describable():
            return {"bias_ptr": self.bias, "BIAS_DESCRIBED": False}
        return {"bias_ptr": walked.descriptor((1, 1, config.BLOCK_QUERIES, config.BLOCK_KEYS)), "BIAS_DESCRIBED": True}

    @property
    def has_describable_bias(self) -> bool:
        walked = self._bias_of_own_matrices()
        return walked is not None and walked.describable()

    @property
    def gathers_bias(self) -> bool:
        """Whether there is a bias that the copy engine cannot fetch, so that its addresses take registers."""
        return self.bias is not None and not self.has_describable_bias

    def _bias_of_own_matrices(self) -> Operand | None:
        """The bias in four dimensions, of which the first two have as many elements as lie in memory; None where
        queries or keys share elements."""
        if self.bias is None or self.packed:
            return None
        of_sequence, of_head, of_row, of_column = self.bias_strides()
        sequences, heads, rows, keys = self.bias_shape
        if rows != self.queries or keys != self.keys or of_row == 0 or of_column != 1:
            return None
        whole = of_row * rows  # where there is one, how far the next would be, in units that the engine takes
        shape = (sequences if of_sequence else 1, heads if of_head else 1, rows, keys)
        return self.bias.seen_as(shape, (of_sequence or whole, of_head or whole, of_row, of_column))

    def bias_strides(self) -> Strides:
        """Those of the bias as if it had been expanded to [batch, heads, queries, keys]."""
        if self.bias is None:
            return 0, 0, 0, 0
        steps = [0 if size == 1 else step for size, step in zip(self.bias.shape, self.bias.strides, strict=True)]
        if LARGEST_BLOCK * sum(steps[-2:]) >= 2**31:
            raise NotWalkable(f"a bias of strides {self.bias.strides} is wider than 32 bits count within a tile")
        return (*(0,) * (4 - len(steps)), *steps)
