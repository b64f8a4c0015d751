"""The parts of AlphaFold 2's Evoformer, and its block in the published order (supplement, algorithm 6).

An alignment m is [batch, sequences, residues, channels], with a boolean mask [batch, sequences, residues]. Pairs z are
[batch, residues, residues, channels], with a boolean mask [batch, residues, residues]. Masks are True for present
elements. A part returns the update of its input, or with `residual=True` input plus update, which the operators compute
without a separate pass. `chunk` is the number of rows or residues that a part processes at a time: smaller chunks need
less memory for intermediate results and give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from tilesmith.nn.arguments import checked, require_input_of
from tilesmith.nn.norms import LayerNorm
from tilesmith.ops.attention_update import attention_update
from tilesmith.ops.edge_norm import edge_norm
from tilesmith.ops.outer_product_mean import outer_product_mean
from tilesmith.ops.runtime.arguments import require_chunk, require_mask
from tilesmith.ops.transition import transition
from tilesmith.ops.triangle_multiply import triangle_multiply

__all__ = [
    "EvoformerBlock",
    "MSAColumnAttention",
    "MSARowAttentionWithPairBias",
    "OuterProductMean",
    "Transition",
    "TriangleAttention",
    "TriangleMultiplication",
    "from_openfold",
    "part_from_openfold",
]


@checked
class TriangleMultiplication(torch.nn.Module):
    """The triangle multiplicative update on `ops.triangle_multiply`; `outgoing=False` for incoming edges.

    Parameters: norm, projection and gate (the rows for a, then those for b), output_norm, output, output_gate.
    """

    def __init__(
        self, channels: int, hidden_channels: int | None = None, *, outgoing: bool = True, **placed: Any
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = channels if hidden_channels is None else hidden_channels
        self.direction = "outgoing" if outgoing else "incoming"
        self.norm = LayerNorm(channels, **placed)
        self.projection = torch.nn.Linear(channels, 2 * hidden, **placed)
        self.gate = torch.nn.Linear(channels, 2 * hidden, **placed)
        self.output_norm = LayerNorm(hidden, **placed)
        self.output = torch.nn.Linear(hidden, channels, **placed)
        self.output_gate = torch.nn.Linear(channels, channels, **placed)

    def forward(
        self, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        return triangle_multiply(
            z, direction=self.direction, mask=mask,
            norm_weight=self.norm.weight, norm_bias=self.norm.bias,
            projection_weight=self.projection.weight, projection_bias=self.projection.bias,
            gate_weight=self.gate.weight, gate_bias=self.gate.bias,
            output_norm_weight=self.output_norm.weight, output_norm_bias=self.output_norm.bias,
            output_weight=self.output.weight, output_bias=self.output.bias,
            output_gate_weight=self.output_gate.weight, output_gate_bias=self.output_gate.bias,
            eps=self.norm.eps, chunk=chunk, residual=residual,
        )  # fmt: skip


class GridAttention(torch.nn.Module):
    """Attention along rows or columns on `ops.attention_update`: norm, queries, keys and values, gate, output layer.

    Parameters: norm, query_key_value (rows for queries, then keys, then values), gate, output.
    """

    side = 1  # the dimension of [batch, rows, columns, …] along which sequences are independent

    def __init__(self, channels: int, heads: int, head_size: int, **placed: Any) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size
        self.norm = LayerNorm(channels, **placed)
        self.query_key_value = torch.nn.Linear(channels, 3 * heads * head_size, bias=False, **placed)
        self.gate = torch.nn.Linear(channels, heads * head_size, **placed)
        self.output = torch.nn.Linear(heads * head_size, channels, **placed)

    def update(
        self, x: Tensor, mask: Tensor | None, chunk: int | None, *, bias: Tensor | None = None,
        edge_weight: Tensor | None = None, residual: bool,
    ) -> Tensor:  # fmt: skip
        require_chunk(type(self).__name__, chunk)
        if isinstance(mask, Tensor) and (mask.is_nested or mask.layout is not torch.strided):
            raise TypeError(f"{type(self).__name__}: mask must be a dense tensor")
        require_mask(type(self).__name__, mask, tuple(x.shape[:-1]), "the shape of the first input without channels")

        def update_chunk(x: Tensor, mask: Tensor | None) -> Tensor:
            return attention_update(
                x, norm_weight=self.norm.weight, norm_bias=self.norm.bias,
                query_key_value_weight=self.query_key_value.weight, gate_weight=self.gate.weight,
                gate_bias=self.gate.bias, output_weight=self.output.weight, output_bias=self.output.bias,
                heads=self.heads, along_columns=self.side == 1, edge_weight=edge_weight, bias=bias, mask=mask,
                eps=self.norm.eps, residual=residual,
            )  # fmt: skip

        return in_chunks(update_chunk, x, mask, self.side, chunk)


@checked
class TriangleAttention(GridAttention):
    """Attention around a pair's starting node, or with `starting=False` its ending node.

    Parameters beside those of GridAttention: edge, which maps the third edge to a bias for each head.
    """

    def __init__(
        self, channels: int, heads: int, head_size: int, *, starting: bool = True, **placed: Any
    ) -> None:  # fmt: skip
        super().__init__(channels, heads, head_size, **placed)
        self.starting = starting
        self.side = 1 if starting else 2
        self.edge = torch.nn.Linear(channels, heads, bias=False, **placed)

    def forward(
        self, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        require_chunk("TriangleAttention", chunk)
        require_input_of(self.gate, "TriangleAttention", "z", z)
        if chunk is None or chunk >= z.shape[self.side]:
            return self.update(z, mask, chunk, edge_weight=self.edge.weight, residual=residual)
        _, bias = edge_norm(  # of all pairs, for every chunk
            z, self.norm.weight, self.norm.bias, self.edge.weight, not self.starting, self.norm.eps
        )
        return self.update(z, mask, chunk, bias=bias, residual=residual)


@checked
class MSARowAttentionWithPairBias(GridAttention):
    """Attention along each sequence of an alignment.

    Parameters beside those of GridAttention: pair_norm and edge, which map the pairs to a bias for each head.
    """

    def __init__(self, channels: int, pair_channels: int, heads: int, head_size: int, **placed: Any) -> None:
        super().__init__(channels, heads, head_size, **placed)
        self.pair_norm = LayerNorm(pair_channels, **placed)
        self.edge = torch.nn.Linear(pair_channels, heads, bias=False, **placed)

    def forward(
        self, m: Tensor, z: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        require_input_of(self.gate, "MSARowAttentionWithPairBias", "m", m)
        norm = self.pair_norm
        _, bias = edge_norm(z, norm.weight, norm.bias, self.edge.weight, False, norm.eps)
        return self.update(m, mask, chunk, bias=bias, residual=residual)


@checked
class MSAColumnAttention(GridAttention):
    """Attention along each column of an alignment."""

    side = 2

    def forward(
        self, m: Tensor, mask: Tensor | None = None, chunk: int | None = None, *, residual: bool = False
    ) -> Tensor:
        require_input_of(self.gate, "MSAColumnAttention", "m", m)
        return self.update(m, mask, chunk, residual=residual)


@checked
class OuterProductMean(torch.nn.Module):
    """The update of the pairs from an alignment, on `ops.outer_product_mean`. Parameters: norm, left, right, output."""

    def __init__(
        self, channels: int, pair_channels: int, hidden_channels: int = 32, *, eps: float = 1e-3, **placed: Any
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        self.norm = LayerNorm(channels, **placed)
        self.left = torch.nn.Linear(channels, hidden_channels, **placed)
        self.right = torch.nn.Linear(channels, hidden_channels, **placed)
        self.output = torch.nn.Linear(hidden_channels**2, pair_channels, **placed)

    def forward(self, m: Tensor, mask: Tensor | None = None, chunk: int | None = None) -> Tensor:
        require_input_of(self.left, "OuterProductMean", "m", m)
        weight = torch.cat((self.left.weight, self.right.weight))
        both = torch.nn.functional.linear(self.norm(m), weight, torch.cat((self.left.bias, self.right.bias)))
        a, b = both.chunk(2, dim=-1)
        return outer_product_mean(a, b, mask, self.output.weight, self.output.bias, chunk=chunk, eps=self.eps)


@checked
class Transition(torch.nn.Module):
    """A norm and two linear layers, with `factor` times the channels between them, as one operator.

    Parameters: norm, expand, contract.
    """

    def __init__(self, channels: int, factor: int = 4, **placed: Any) -> None:
        super().__init__()
        self.norm = LayerNorm(channels, **placed)
        self.expand = torch.nn.Linear(channels, factor * channels, **placed)
        self.contract = torch.nn.Linear(factor * channels, channels, **placed)

    def forward(self, x: Tensor, chunk: int | None = None, *, residual: bool = False) -> Tensor:
        require_input_of(self.expand, "Transition", "x", x)
        require_chunk("Transition", chunk)
        side = max(min(1, x.ndim - 2), 0)  # never the channels
        return in_chunks(lambda rows, _: self._update(rows, residual), x, None, side, chunk)

    def _update(self, x: Tensor, residual: bool) -> Tensor:
        return transition(
            x, self.norm.weight, self.norm.bias, self.expand.weight, self.expand.bias, self.contract.weight,
            self.contract.bias, self.norm.eps, residual=residual,
        )  # fmt: skip


def in_chunks(
    function: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, mask: Tensor | None, side: int, chunk: int | None
) -> Tensor:  # fmt: skip
    """Return function(x, mask), computed for `chunk` members of dimension `side` at a time; None means all at once."""
    if chunk is None or chunk >= x.shape[side]:
        return function(x, mask)
    parts = torch.split(x, chunk, dim=side)
    masks = (None,) * len(parts) if mask is None else torch.split(mask, chunk, dim=side)
    return torch.cat([function(part, part_mask) for part, part_mask in zip(parts, masks, strict=True)], dim=side)


@checked
class EvoformerBlock(torch.nn.Module):
    """One block of the Evoformer: `m, z = block(m, z, msa_mask, pair_mask)`.

    The published order: row attention, column attention and transition of the alignment; the outer product mean;
    triangle multiplication of outgoing and incoming edges, triangle attention around starting and ending nodes, and
    transition of the pairs. In training, dropout removes updates of whole rows, or columns for the ending node, with
    probabilities `msa_dropout` and `pair_dropout`. Column attention, transitions and the outer product have none.

    `from_openfold` converts a block of an OpenFold checkpoint to a state dict of this block.
    """

    PARTS: ClassVar[dict[str, type[torch.nn.Module]]] = {
        "row_attention": MSARowAttentionWithPairBias, "column_attention": MSAColumnAttention,
        "transition": Transition, "outer_product_mean": OuterProductMean,
        "triangle_multiplication": TriangleMultiplication, "triangle_attention": TriangleAttention,
    }  # fmt: skip

    def __init__(
        self,
        msa_channels: int = 256,
        pair_channels: int = 128,
        *,
        msa_heads: int = 8,
        pair_heads: int = 4,
        head_size: int = 32,
        outer_channels: int = 32,
        triangle_channels: int = 128,
        transition_factor: int = 4,
        msa_dropout: float = 0.15,
        pair_dropout: float = 0.25,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.msa_dropout, self.pair_dropout = msa_dropout, pair_dropout
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        part = self.PARTS
        heads = (pair_heads, head_size)
        self.msa_row_attention = part["row_attention"](msa_channels, pair_channels, msa_heads, head_size, **placed)
        self.msa_column_attention = part["column_attention"](msa_channels, msa_heads, head_size, **placed)
        self.msa_transition = part["transition"](msa_channels, transition_factor, **placed)
        self.outer_product_mean = part["outer_product_mean"](msa_channels, pair_channels, outer_channels, **placed)
        multiplication, attention = part["triangle_multiplication"], part["triangle_attention"]
        self.triangle_multiplication_outgoing = multiplication(pair_channels, triangle_channels, **placed)
        self.triangle_multiplication_incoming = multiplication(
            pair_channels, triangle_channels, outgoing=False, **placed
        )
        self.triangle_attention_starting = attention(pair_channels, *heads, **placed)
        self.triangle_attention_ending = attention(pair_channels, *heads, starting=False, **placed)
        self.pair_transition = part["transition"](pair_channels, transition_factor, **placed)

    def forward(
        self,
        m: Tensor,
        z: Tensor,
        msa_mask: Tensor | None = None,
        pair_mask: Tensor | None = None,
        chunk: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        pair_dropout = self.pair_dropout
        m = self._updated(self.msa_row_attention, m, z, msa_mask, chunk, dropout=self.msa_dropout)
        m = self._updated(self.msa_column_attention, m, msa_mask, chunk)
        m = self._updated(self.msa_transition, m, chunk)
        z = z + self.outer_product_mean(m, msa_mask, chunk)
        z = self._updated(self.triangle_multiplication_outgoing, z, pair_mask, chunk, dropout=pair_dropout)
        z = self._updated(self.triangle_multiplication_incoming, z, pair_mask, chunk, dropout=pair_dropout)
        z = self._updated(self.triangle_attention_starting, z, pair_mask, chunk, dropout=pair_dropout)
        z = self._updated(self.triangle_attention_ending, z, pair_mask, chunk, dropout=pair_dropout, side=2)
        return m, self._updated(self.pair_transition, z, chunk)

    def _updated(
        self, part: torch.nn.Module, x: Tensor, *others: Any, dropout: float = 0.0, side: int = 1
    ) -> Tensor:  # fmt: skip
        """Return x plus the part's update; the part adds it, unless dropout comes first."""
        if not (self.training and dropout):
            return part(x, *others, residual=True)  # type: ignore[no-any-return]  # a module returns Any
        return x + self._dropped(part(x, *others), dropout, side)

    def _dropped(self, update: Tensor, probability: float, side: int) -> Tensor:
        """Return the update with dropout that is constant along one dimension."""
        if not self.training or not probability:
            return update
        shape = [1 if dimension == side else size for dimension, size in enumerate(update.shape)]
        return update * torch.nn.functional.dropout(update.new_ones(shape), probability)


_ATTENTION = {"mha.linear_g": "gate", "mha.linear_o": "output"}
_MULTIPLICATION = {
    "layer_norm_in": "norm", "layer_norm_out": "output_norm", "linear_z": "output", "linear_g": "output_gate",
}  # fmt: skip
_TRANSITION = {"layer_norm": "norm", "linear_1": "expand", "linear_2": "contract"}
_OUTER = {"layer_norm": "norm", "linear_1": "left", "linear_2": "right", "linear_out": "output"}
Packed = dict[str, tuple[str, ...]]
_PACKED_ATTENTION: Packed = {"query_key_value": ("mha.linear_q", "mha.linear_k", "mha.linear_v")}
_PACKED_MULTIPLICATION: Packed = {"projection": ("linear_a_p", "linear_b_p"), "gate": ("linear_a_g", "linear_b_g")}

# For each part of OpenFold: our name, our names of its layers, and the layers that we concatenate.
OPENFOLD: dict[str, tuple[str, dict[str, str], Packed]] = {
    "msa_att_row": (
        "msa_row_attention",
        {"layer_norm_m": "norm", "layer_norm_z": "pair_norm", "linear_z": "edge", **_ATTENTION},
        _PACKED_ATTENTION,
    ),
    "msa_att_col._msa_att": ("msa_column_attention", {"layer_norm_m": "norm", **_ATTENTION}, _PACKED_ATTENTION),
    "msa_transition": ("msa_transition", _TRANSITION, {}),
    "outer_product_mean": ("outer_product_mean", _OUTER, {}),
    "tri_mul_out": ("triangle_multiplication_outgoing", _MULTIPLICATION, _PACKED_MULTIPLICATION),
    "tri_mul_in": ("triangle_multiplication_incoming", _MULTIPLICATION, _PACKED_MULTIPLICATION),
    "tri_att_start": (
        "triangle_attention_starting", {"layer_norm": "norm", "linear": "edge", **_ATTENTION}, _PACKED_ATTENTION,
    ),
    "tri_att_end": (
        "triangle_attention_ending", {"layer_norm": "norm", "linear": "edge", **_ATTENTION}, _PACKED_ATTENTION,
    ),
    "pair_transition": ("pair_transition", _TRANSITION, {}),
}  # fmt: skip


def from_openfold(block: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of an `EvoformerBlock` from that of a block of an OpenFold checkpoint.

    Names start after `evoformer.blocks.0.`; prefixes `core.` and `pair_stack.`, which some versions have, are accepted.
    Raises ValueError for unknown names; `load_state_dict` reports missing ones.
    """
    given = {name.removeprefix("core.").removeprefix("pair_stack."): value for name, value in block.items()}
    found: dict[str, Tensor] = {}
    for theirs, (ours, layers, packed) in OPENFOLD.items():
        found |= {f"{ours}.{name}": one for name, one in _converted(given, f"{theirs}.", layers, packed).items()}
    if given:
        raise ValueError(f"from_openfold: block has {', '.join(sorted(given))}, which EvoformerBlock does not have")
    return found


def part_from_openfold(part: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of one of our parts from that of OpenFold's module.

    `part` is OpenFold's name of the module in a block: tri_mul_out, tri_mul_in, tri_att_start, tri_att_end,
    msa_att_row, msa_att_col._msa_att, msa_transition, pair_transition or outer_product_mean.
    """
    if part not in OPENFOLD:
        raise ValueError(f"part_from_openfold: part is {part!r}, but must be one of {', '.join(OPENFOLD)}")
    given = dict(state)
    _, layers, packed = OPENFOLD[part]
    found = _converted(given, "", layers, packed)
    if given:
        raise ValueError(f"part_from_openfold: state has {', '.join(sorted(given))}, which our {part} does not have")
    return found


def _converted(given: dict[str, Tensor], prefix: str, layers: dict[str, str], packed: Packed) -> dict[str, Tensor]:
    """Take the parameters of one part out of `given`; return them by our names."""
    found: dict[str, Tensor] = {}
    for parameter in ("weight", "bias"):
        for layer, name in layers.items():
            if f"{prefix}{layer}.{parameter}" in given:
                found[f"{name}.{parameter}"] = given.pop(f"{prefix}{layer}.{parameter}")
        for name, members in packed.items():
            names = [f"{prefix}{member}.{parameter}" for member in members]
            if all(member in given for member in names):
                found[f"{name}.{parameter}"] = torch.cat([given.pop(member) for member in names])
    return found
