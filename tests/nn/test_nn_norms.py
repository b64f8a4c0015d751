"""Norms and SiLU: state, results and gradients of torch's own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith import nn
from tilesmith.nn import norms


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with ts.use("interpret"):
        yield


def results(module: torch.nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    """Return the output, and the gradients of the input and of every parameter."""
    x = x.detach().clone().requires_grad_()
    y = module(x)
    module.zero_grad()
    y.backward(torch.arange(y.numel()).mul(1.7).sin().view(y.shape))
    return {"y": y.detach(), "x": x.grad, **{name: parameter.grad for name, parameter in module.named_parameters()}}


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """Set random weights: with ones, a missing weight would not show."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


NORMS: list[tuple[str, dict[str, Any]]] = [
    ("RMSNorm", {"normalized_shape": 24}),
    ("RMSNorm", {"normalized_shape": [24]}),
    ("RMSNorm", {"normalized_shape": (3, 8)}),
    ("RMSNorm", {"normalized_shape": torch.Size((2, 3, 4))}),
    ("RMSNorm", {"normalized_shape": 24, "eps": 0.1}),
    ("RMSNorm", {"normalized_shape": (3, 8), "eps": 1e-5}),
    ("RMSNorm", {"normalized_shape": 24, "elementwise_affine": False}),
    ("RMSNorm", {"normalized_shape": (3, 8), "elementwise_affine": False, "eps": 0.0}),
    ("LayerNorm", {"normalized_shape": 24}),
    ("LayerNorm", {"normalized_shape": [3, 8], "eps": 0.1}),
    ("LayerNorm", {"normalized_shape": 24, "bias": False}),
    ("LayerNorm", {"normalized_shape": (3, 8), "bias": False}),
    ("LayerNorm", {"normalized_shape": 24, "elementwise_affine": False}),
    ("LayerNorm", {"normalized_shape": (2, 3, 4), "elementwise_affine": False}),
]


@pytest.mark.parametrize(("name", "options"), NORMS, ids=str)
class TestNorms:
    def pair(self, name: str, options: dict[str, Any]) -> tuple[torch.nn.Module, torch.nn.Module]:
        ours, torchs = getattr(norms, name)(**options), getattr(torch.nn, name)(**options)
        ours.load_state_dict(filled(torchs).state_dict())
        return ours, torchs

    def x_for(self, options: dict[str, Any]) -> Tensor:
        shape = options["normalized_shape"]
        return torch.randn(5, 2, *((shape,) if isinstance(shape, int) else shape))

    def test_matches_torch(self, name: str, options: dict[str, Any]) -> None:
        ours, torchs = self.pair(name, options)
        x = self.x_for(options)
        torch.testing.assert_close(results(ours, x), results(torchs, x))

    def test_takes_any_layout(self, name: str, options: dict[str, Any]) -> None:
        ours, torchs = self.pair(name, options)
        x = self.x_for(options)
        transposed = x.transpose(0, -1).contiguous().transpose(0, -1)
        torch.testing.assert_close(results(ours, transposed), results(torchs, x))

    def test_state_dicts_are_interchangeable_with_torch(self, name: str, options: dict[str, Any]) -> None:
        ours, torchs = filled(getattr(norms, name)(**options)), getattr(torch.nn, name)(**options)
        torchs.load_state_dict(ours.state_dict())
        again = getattr(norms, name)(**options)
        again.load_state_dict(torchs.state_dict())
        assert list(again.state_dict()) == list(torchs.state_dict())
        for key, value in ours.state_dict().items():
            torch.testing.assert_close(again.state_dict()[key], value, rtol=0, atol=0)

    def test_copies_and_pickles(self, name: str, options: dict[str, Any]) -> None:
        module, _ = self.pair(name, options)
        stored = io.BytesIO()
        torch.save(module, stored)
        stored.seek(0)
        x = self.x_for(options)
        for other in (
            copy.deepcopy(module),
            pickle.loads(pickle.dumps(module)),
            torch.load(stored, weights_only=False),
        ):
            torch.testing.assert_close(results(other, x), results(module, x), rtol=0, atol=0)

    def test_compiles_to_one_graph(self, name: str, options: dict[str, Any]) -> None:
        ours, _ = self.pair(name, options)
        x = self.x_for(options)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(ours, fullgraph=True, backend="aot_eager")(x), ours(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm_default_eps_matches_torch(dtype: torch.dtype) -> None:
    x = torch.full((2, 16), 1e-3, dtype=dtype)
    torch.testing.assert_close(nn.RMSNorm(16, dtype=dtype)(x), torch.nn.RMSNorm(16, dtype=dtype)(x))


def test_norms_are_subclasses_of_torchs() -> None:
    """Code that finds norms by class, to exclude them from weight decay, finds ours too."""
    assert isinstance(norms.RMSNorm(4), torch.nn.RMSNorm)
    assert isinstance(norms.AddRMSNorm(4), torch.nn.RMSNorm)
    assert isinstance(norms.LayerNorm(4), torch.nn.LayerNorm)


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("shape", [(5, 23), (8, 3), (24,), (3,), ()], ids=str)
def test_norm_rejects_input_of_another_shape(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: x has shape .*, but must end in normalized_shape \(3, 8\)"):
        getattr(norms, name)((3, 8))(torch.randn(shape))


@pytest.mark.parametrize("shape", [24, (3, 8)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
class TestAddRMSNorm:
    """Against an addition and torch's RMSNorm, because torch has no such module."""

    def test_add_rms_norm_matches_torch(self, shape: int | tuple[int, ...], affine: bool) -> None:
        ours = norms.AddRMSNorm(shape, eps=1e-5, elementwise_affine=affine)
        torchs = torch.nn.RMSNorm(shape, eps=1e-5, elementwise_affine=affine)
        ours.load_state_dict(filled(torchs).state_dict())
        x, residual = torch.randn(2, 5, *torchs.normalized_shape)
        mine, theirs = [[one.clone().requires_grad_() for one in (x, residual)] for _ in range(2)]
        found, total = ours(*mine), mine[0] + mine[1]
        right = (torchs(sum(theirs)), sum(theirs))
        torch.testing.assert_close(found, right)
        torch.testing.assert_close(found[1], total, rtol=0, atol=0)
        cotangents = [torch.randn(x.shape), torch.randn(x.shape)]
        torch.testing.assert_close(
            torch.autograd.grad(found, [*mine, *ours.parameters()], cotangents),
            torch.autograd.grad(right, [*theirs, *torchs.parameters()], cotangents),
        )

    def test_rejects_inputs_of_another_shape(self, shape: int | tuple[int, ...], affine: bool) -> None:
        module = norms.AddRMSNorm(shape, elementwise_affine=affine)
        good, wrong = torch.randn(5, *module.normalized_shape), torch.randn(5, 23)
        for name, arguments in (("x", (wrong, good)), ("residual", (good, wrong))):
            with pytest.raises(ValueError, match=f"^AddRMSNorm: {name} has shape .*, but must end in"):
                module(*arguments)


def test_silu_matches_torch() -> None:
    x = torch.randn(3, 40)
    torch.testing.assert_close(results(nn.SiLU(), x), results(torch.nn.SiLU(), x))


def test_silu_has_an_empty_state_dict() -> None:
    nn.SiLU().load_state_dict(torch.nn.SiLU().state_dict())
    torch.nn.SiLU().load_state_dict(nn.SiLU().state_dict())
    copied = pickle.loads(pickle.dumps(copy.deepcopy(nn.SiLU())))
    torch.testing.assert_close(copied(torch.ones(3)), torch.nn.functional.silu(torch.ones(3)))


def test_silu_does_not_change_its_input() -> None:
    x = torch.randn(3, 40)
    before = x.clone()
    nn.SiLU()(x)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def test_modules_move_to_another_dtype() -> None:
    block = torch.nn.Sequential(nn.RMSNorm(16), nn.SiLU()).to(torch.bfloat16)
    assert block(torch.randn(3, 16, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_operators_themselves_can_be_copied_and_pickled() -> None:
    """A model may hold an operator as an attribute, like an activation function."""
    silu = ts.ops.SPECS["silu"].op
    assert copy.deepcopy(silu) is silu
    assert pickle.loads(pickle.dumps(silu)) is silu
