"""Small modules with the parameters and arguments of Boltz, OpenFold, OpenFold3 and Protenix.

Their code is ours: each is written from the published algorithm, in plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNELS, HIDDEN, HEADS, HEAD, ALIGNED, SINGLE = 12, 8, 2, 4, 10, 8


def linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias)


def product(a: Tensor, b: Tensor, outgoing: bool) -> Tensor:
    return torch.einsum("...ikc,...jkc->...ijc" if outgoing else "...kic,...kjc->...ijc", a, b)


class BoltzOutgoing(nn.Module):
    outgoing = True

    def __init__(self) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.p_in, self.g_in = linear(CHANNELS, 2 * CHANNELS), linear(CHANNELS, 2 * CHANNELS)
        self.p_out, self.g_out = linear(CHANNELS, CHANNELS), linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor, mask: Tensor, use_kernels: bool = False) -> Tensor:
        xn = self.norm_in(x)
        a, b = (self.p_in(xn) * self.g_in(xn).sigmoid() * mask.unsqueeze(-1)).chunk(2, dim=-1)
        made: Tensor = self.p_out(self.norm_out(product(a, b, self.outgoing))) * self.g_out(xn).sigmoid()
        return made


class BoltzIncoming(BoltzOutgoing):
    outgoing = False


class OpenFoldMultiplication(nn.Module):
    """OpenFold, OpenFold3 and Protenix; with biases as in AlphaFold 2."""

    def __init__(self, _outgoing: bool = True, bias: bool = True) -> None:
        super().__init__()
        self._outgoing = _outgoing
        self.linear_a_p, self.linear_b_p = linear(CHANNELS, HIDDEN, bias), linear(CHANNELS, HIDDEN, bias)
        self.linear_a_g, self.linear_b_g = linear(CHANNELS, HIDDEN, bias), linear(CHANNELS, HIDDEN, bias)
        self.linear_g, self.linear_z = linear(CHANNELS, CHANNELS, bias), linear(HIDDEN, CHANNELS, bias)
        self.layer_norm_in, self.layer_norm_out = nn.LayerNorm(CHANNELS), nn.LayerNorm(HIDDEN)

    def forward(
        self, z: Tensor, mask: Tensor | None = None, inplace_safe: bool = False, _add_with_inplace: bool = False,
        _inplace_chunk_size: int | None = 256, triangle_multiplicative: str = "torch",
    ) -> Tensor:  # fmt: skip
        exists = z.new_ones(z.shape[:-1]) if mask is None else mask
        zn = self.layer_norm_in(z)
        a = exists[..., None] * self.linear_a_g(zn).sigmoid() * self.linear_a_p(zn)
        b = exists[..., None] * self.linear_b_g(zn).sigmoid() * self.linear_b_p(zn)
        made = self.layer_norm_out(product(a, b, self._outgoing))
        update: Tensor = self.linear_z(made) * self.linear_g(zn).sigmoid()
        return z + update if inplace_safe and _add_with_inplace else update


class Attention(nn.Module):
    """The attention inside all of these; its output and gate layers have biases in AlphaFold 2."""

    def __init__(self, channels: int, bias: bool) -> None:
        super().__init__()
        self.no_heads = HEADS
        self.linear_q, self.linear_k, self.linear_v = (linear(channels, HEADS * HEAD) for _ in range(3))
        self.linear_g, self.linear_o = linear(channels, HEADS * HEAD, bias), linear(HEADS * HEAD, channels, bias)

    def forward(self, x: Tensor, biases: list[Tensor]) -> Tensor:
        q, k, v, g = (
            layer(x).unflatten(-1, (HEADS, HEAD)).transpose(-2, -3)
            for layer in (self.linear_q, self.linear_k, self.linear_v, self.linear_g)
        )
        scores = q @ k.mT * HEAD**-0.5
        for bias in biases:
            scores = scores + bias
        attended = torch.softmax(scores, dim=-1) @ v * g.sigmoid()
        made: Tensor = self.linear_o(attended.transpose(-2, -3).flatten(-2))
        return made


class TriangleAttention(nn.Module):
    def __init__(self, starting: bool = True, bias: bool = False, edge: str = "linear") -> None:
        super().__init__()
        self.starting, self.edge = starting, edge
        self.layer_norm, self.mha = nn.LayerNorm(CHANNELS), Attention(CHANNELS, bias)
        setattr(self, edge, linear(CHANNELS, HEADS))

    def forward(
        self, x: Tensor, mask: Tensor | None = None, chunk_size: int | None = None, use_kernels: bool = False
    ) -> Tensor:
        exists = x.new_ones(x.shape[:-1]) if mask is None else mask
        if not self.starting:
            x, exists = x.transpose(-2, -3), exists.transpose(-1, -2)
        x = self.layer_norm(x)
        of_mask = (1e9 * (exists - 1))[..., :, None, None, :]
        edge: Any = getattr(self, self.edge)
        made: Tensor = self.mha(x, [of_mask, edge(x).movedim(-1, -3).unsqueeze(-4)])
        return made if self.starting else made.transpose(-2, -3)


class MSARowAttention(nn.Module):
    def __init__(self, pairs: bool = True) -> None:
        super().__init__()
        self.layer_norm_m, self.mha = nn.LayerNorm(ALIGNED), Attention(ALIGNED, True)
        if pairs:
            self.layer_norm_z, self.linear_z = nn.LayerNorm(CHANNELS), linear(CHANNELS, HEADS)

    def forward(
        self, m: Tensor, z: Tensor | None = None, mask: Tensor | None = None, chunk_size: int | None = None,
        use_lma: bool = False,
    ) -> Tensor:  # fmt: skip
        exists = m.new_ones(m.shape[:-1]) if mask is None else mask
        biases = [(1e9 * (exists - 1))[..., :, None, None, :]]
        if z is not None:
            biases.append(self.linear_z(self.layer_norm_z(z)).movedim(-1, -3).unsqueeze(-4))
        made: Tensor = self.mha(self.layer_norm_m(m), biases)
        return made


class MSAColumnAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._msa_att = MSARowAttention(pairs=False)

    def forward(self, m: Tensor, mask: Tensor | None = None, chunk_size: int | None = None) -> Tensor:
        mask = None if mask is None else mask.transpose(-1, -2)
        made: Tensor = self._msa_att(m.transpose(-2, -3), mask=mask, chunk_size=chunk_size)
        return made.transpose(-2, -3)


class Rearranged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)


class BoltzPairBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.inf = HEADS, 1e6
        self.proj_q = linear(SINGLE, SINGLE, True)
        self.proj_k, self.proj_v, self.proj_g, self.proj_o = (linear(SINGLE, SINGLE) for _ in range(4))
        self.proj_z = nn.Sequential(nn.LayerNorm(CHANNELS), linear(CHANNELS, HEADS), Rearranged())

    def forward(self, s: Tensor, z: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int = 1) -> Tensor:
        return self.attended(s, self.proj_z(z), mask, k_in, multiplicity)

    def attended(self, s: Tensor, bias: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int) -> Tensor:
        q, k, v = (
            layer(one).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer, one in ((self.proj_q, s), (self.proj_k, k_in), (self.proj_v, k_in))
        )
        bias = bias.repeat_interleave(multiplicity, 0)
        with torch.autocast(s.device.type, enabled=False):
            exact = torch.promote_types(q.dtype, torch.float32)
            scores = q.to(exact) @ k.to(exact).mT * q.shape[-1] ** -0.5 + bias
            scores = scores + (1 - mask[:, None, None].float()) * -self.inf
            attended = (scores.softmax(-1) @ v.to(exact)).to(v.dtype).transpose(1, 2).flatten(2)
        made: Tensor = self.proj_o(self.proj_g(s).sigmoid() * attended)
        return made


class OuterProductMean(nn.Module):
    """OpenFold's names and mean, or Boltz's."""

    def __init__(self, boltz: bool = False) -> None:
        super().__init__()
        self.boltz, self.eps = boltz, 1e-3
        names = (
            ("norm", "proj_a", "proj_b", "proj_o") if boltz else ("layer_norm", "linear_1", "linear_2", "linear_out")
        )
        layers = (
            nn.LayerNorm(ALIGNED),
            linear(ALIGNED, 3, not boltz),
            linear(ALIGNED, 3, not boltz),
            linear(9, CHANNELS, True),
        )
        for name, layer in zip(names, layers, strict=True):
            setattr(self, name, layer)
        self.names = names

    def forward(self, m: Tensor, mask: Tensor | None = None, chunk_size: int | None = None) -> Tensor:
        norm, left, right, output = (getattr(self, name) for name in self.names)
        exists = (m.new_ones(m.shape[:-1]) if mask is None else mask).unsqueeze(-1)
        m = norm(m)
        outer = torch.einsum("...sic,...sjd->...ijcd", left(m) * exists, right(m) * exists).flatten(-2)
        count = torch.einsum("...sic,...sjc->...ijc", exists, exists)
        made: Tensor = output(outer / count.clamp(min=1)) if self.boltz else output(outer) / (count + self.eps)
        return made


class BoltzTransition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(CHANNELS), linear(CHANNELS, 24), linear(CHANNELS, 24)
        self.fc3 = linear(24, CHANNELS)

    def forward(self, x: Tensor, chunk_size: int | None = None) -> Tensor:
        x = self.norm(x)
        made: Tensor = self.fc3(F.silu(self.fc1(x)) * self.fc2(x))
        return made


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_a, self.linear_b = linear(CHANNELS, 24), linear(CHANNELS, 24)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = F.silu(self.linear_a(x)) * self.linear_b(x)
        return made


class OpenFold3Transition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_norm, self.swiglu, self.linear_out = nn.LayerNorm(CHANNELS), SwiGLU(), linear(24, CHANNELS)

    def forward(self, x: Tensor, mask: Tensor | None = None, chunk_size: int | None = None) -> Tensor:
        made: Tensor = self.linear_out(self.swiglu(self.layer_norm(x)))
        return made if mask is None else made * mask.unsqueeze(-1)


class ProtenixTransition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layernorm1 = nn.LayerNorm(CHANNELS)
        self.linear_no_bias_a, self.linear_no_bias_b = linear(CHANNELS, 24), linear(CHANNELS, 24)
        self.linear_no_bias = linear(24, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layernorm1(x)
        made: Tensor = self.linear_no_bias(F.silu(self.linear_no_bias_a(x)) * self.linear_no_bias_b(x))
        return made


class PairTransition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(CHANNELS)
        self.linear_1, self.linear_2 = linear(CHANNELS, 24, True), linear(24, CHANNELS, True)

    def forward(self, z: Tensor, mask: Tensor | None = None, chunk_size: int | None = None) -> Tensor:
        made: Tensor = self.linear_2(F.relu(self.linear_1(self.layer_norm(z))))
        return made if mask is None else made * mask.unsqueeze(-1)


class Model(nn.Module):
    """One of each, on pairs, an alignment and residues."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.ModuleList([
            BoltzOutgoing(), BoltzIncoming(), OpenFoldMultiplication(True), OpenFoldMultiplication(False, bias=False),
            TriangleAttention(), TriangleAttention(starting=False), TriangleAttention(bias=True, edge="linear_z"),
            BoltzTransition(), OpenFold3Transition(), ProtenixTransition(), PairTransition(),
        ])  # fmt: skip
        self.row, self.column = MSARowAttention(), MSAColumnAttention()
        self.outer = nn.ModuleList([OuterProductMean(), OuterProductMean(boltz=True)])
        self.single = BoltzPairBias()

    def forward(self, z: Tensor, m: Tensor, s: Tensor, mask: Tensor, aligned: Tensor) -> tuple[Tensor, ...]:
        pair_mask = mask[:, :, None] * mask[:, None, :]
        m = m + self.row(m, z, mask=aligned)
        m = m + self.column(m, mask=aligned)
        for outer in self.outer:
            z = z + outer(m, aligned)
        for part in self.pairs:
            plain = isinstance(part, (BoltzTransition, ProtenixTransition))
            z = z + (part(z) if plain else part(z, mask=pair_mask))
        return z, m, s + self.single(s, z, mask, s)


def model_and_inputs(residues: int = 6, sequences: int = 3) -> tuple[Model, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = Model()
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        parameter.data = noise * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.7 + 0.3 * noise
    mask, aligned = torch.ones(2, residues), torch.ones(2, sequences, residues)
    mask[0, -2:] = aligned[0, 1:, -2:] = 0
    inputs = {
        "z": torch.randn(2, residues, residues, CHANNELS), "m": torch.randn(2, sequences, residues, ALIGNED),
        "s": torch.randn(2, residues, SINGLE), "mask": mask, "aligned": aligned,
    }  # fmt: skip
    return model, inputs
