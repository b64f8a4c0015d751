"""Softmax, GELU, and the SwiGLU and GeGLU feed-forward blocks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilesmith as ts
from tilesmith.nn.activations import GELU, GeGLU, SiLU, Softmax, SwiGLU


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def results(module: torch.nn.Module, x: Tensor) -> dict[str, Any]:
    """Return the output, and the gradients of the input and of every parameter."""
    x = x.detach().clone().requires_grad_()
    y = module(x)
    module.zero_grad()
    y.backward(torch.arange(y.numel()).mul(1.7).sin().view(y.shape))
    return {"y": y.detach(), "x": x.grad, **{name: parameter.grad for name, parameter in module.named_parameters()}}


class HuggingFaceMLP(torch.nn.Module):
    """The feed-forward block of Hugging Face's LLaMA, with its parameter names."""

    def __init__(self, dim: int, hidden_dim: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(dim, hidden_dim, bias)
        self.up_proj = torch.nn.Linear(dim, hidden_dim, bias)
        self.down_proj = torch.nn.Linear(hidden_dim, dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


def test_silu_takes_torchs_argument() -> None:
    module, x = SiLU(inplace=False), torch.randn(3, 5)
    assert isinstance(module, torch.nn.SiLU)
    assert repr(module) == repr(torch.nn.SiLU())
    torch.testing.assert_close(module(x), F.silu(x))
    with pytest.raises(ValueError, match="SiLU: inplace is True, but must be False"):
        SiLU(inplace=True)


@pytest.mark.parametrize("bias", [False, True])
def test_swiglu_matches_hugging_faces_block(bias: bool) -> None:
    theirs = HuggingFaceMLP(12, 20, bias)
    ours = SwiGLU(12, 20, bias)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(results(ours, x), results(theirs, x))


@pytest.mark.parametrize("bias", [False, True])
def test_packed_swiglu_matches_separate_gate_and_up(bias: bool) -> None:
    apart, packed = SwiGLU(12, 20, bias), SwiGLU(12, 20, bias, packed=True)
    state = apart.state_dict()
    joint = {
        name.replace("gate_", "gate_up_"): torch.cat((value, state[name.replace("gate", "up")]))
        for name, value in state.items()
        if name.startswith("gate")
    }
    packed.load_state_dict(joint | {name: value for name, value in state.items() if name.startswith("down")})
    x = torch.randn(2, 5, 12)
    ours, right = results(packed, x), results(apart, x)
    torch.testing.assert_close((ours["y"], ours["x"]), (right["y"], right["x"]))
    torch.testing.assert_close(
        ours["gate_up_proj.weight"], torch.cat((right["gate_proj.weight"], right["up_proj.weight"]))
    )


@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("packed", [False, True])
def test_geglu_matches_pytorch(packed: bool, approximate: str) -> None:
    ours = GeGLU(12, 20, approximate=approximate, packed=packed)

    class Theirs(GeGLU):
        def activated(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
            gate, up = gate.chunk(2, -1) if up is None else (gate, up)
            return F.gelu(gate, approximate=approximate) * up

    theirs = Theirs(12, 20, packed=packed)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(results(ours, x), results(theirs, x))


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_matches_torch(approximate: str) -> None:
    x = torch.randn(3, 4, 9)
    torch.testing.assert_close(results(GELU(approximate), x), results(torch.nn.GELU(approximate), x))


def test_swiglu_takes_device_and_dtype() -> None:
    module = SwiGLU(12, 20, device="meta", dtype=torch.bfloat16)
    assert {(value.device.type, value.dtype) for value in module.parameters()} == {("meta", torch.bfloat16)}


@pytest.mark.parametrize("packed", [False, True])
def test_swiglu_compiles_copies_and_pickles(packed: bool) -> None:
    module, x = SwiGLU(12, 20, packed=packed), torch.randn(2, 5, 12)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(results(other, x), results(module, x), rtol=0, atol=0)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_matches_torch(dim: int) -> None:
    x = torch.randn(3, 4, 9)
    torch.testing.assert_close(results(Softmax(dim), x), results(torch.nn.Softmax(dim), x))
    assert isinstance(Softmax(dim), torch.nn.Softmax)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_softmax_without_a_dimension_matches_torch() -> None:
    x = torch.randn(3, 4, 9)
    torch.testing.assert_close(Softmax()(x), torch.nn.Softmax()(x))
