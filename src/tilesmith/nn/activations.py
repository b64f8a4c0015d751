"""Activations, and the SwiGLU and GeGLU feed-forward blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.nn.arguments import checked, checked_softmax, require_input_of
from tilesmith.ops.geglu import geglu
from tilesmith.ops.gelu import gelu
from tilesmith.ops.silu import silu
from tilesmith.ops.softmax import softmax
from tilesmith.ops.swiglu import swiglu

__all__ = ["GELU", "GeGLU", "SiLU", "Softmax", "SwiGLU"]


@checked
class SiLU(torch.nn.SiLU):
    """torch.nn.SiLU on `ops.silu`; never in place."""

    def __init__(self, inplace: bool = False) -> None:
        if inplace:
            raise ValueError("SiLU: inplace is True, but must be False; the result is a new tensor")
        super().__init__(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return silu(x)


@checked
class GELU(torch.nn.GELU):
    """torch.nn.GELU on `ops.gelu`."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x, self.approximate)


@checked_softmax
class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax on `ops.softmax`."""

    def forward(self, x: Tensor) -> Tensor:
        if self.dim is None:  # PyTorch warns and chooses a dimension
            return super().forward(x)
        return softmax(x, self.dim)


@checked
class SwiGLU(torch.nn.Module):
    """LLaMA's feed-forward block: down_proj(silu(gate_proj(x)) · up_proj(x)).

    The projections are torch.nn.Linear, on the BLAS; one kernel, `ops.swiglu`, runs between them. Parameters have the
    names of Hugging Face's LLaMA, so its weights load. With `packed`, gate and up are one projection, gate_up_proj,
    with the gate's rows first, as in Hugging Face's Phi-3.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        bias: bool = False,
        *,
        packed: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> torch.nn.Linear:
            return torch.nn.Linear(inputs, outputs, bias, device=device, dtype=dtype)

        self.packed = packed
        if packed:
            self.gate_up_proj = linear(dim, 2 * hidden_dim)
        else:
            self.gate_proj = linear(dim, hidden_dim)
            self.up_proj = linear(dim, hidden_dim)
        self.down_proj = linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        first = self.gate_up_proj if self.packed else self.gate_proj
        require_input_of(first, type(self).__name__, "x", x)
        projected = (self.gate_up_proj(x),) if self.packed else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(self.activated(*projected))  # type: ignore[no-any-return]  # a module returns Any

    def activated(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """Return the hidden units from both projections, or from the packed one."""
        return swiglu(gate, up)


@checked
class GeGLU(SwiGLU):
    """Gemma's feed-forward block: down_proj(gelu(gate_proj(x)) · up_proj(x)), with the parameters of SwiGLU.

    `approximate` is "tanh", as in Gemma, or "none".
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        bias: bool = False,
        *,
        approximate: str = "tanh",
        packed: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, hidden_dim, bias, packed=packed, device=device, dtype=dtype)
        self.approximate = approximate

    def activated(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return geglu(gate, up, self.approximate)
