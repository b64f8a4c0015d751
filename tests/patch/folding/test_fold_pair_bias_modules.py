"""`fold` replaces attention with pair bias of Boltz, OpenFold3 and Protenix, and the modules compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pair_bias_models as models
import pytest
import torch
from protein_models import CHANNELS, HEADS, SINGLE, BoltzPairBias
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tilesmith as ts
from tilesmith.ops.runtime.dispatch import Mode
from tilesmith.patch import fold, report

N = 8
Inputs = dict[str, Any]


def of_samples(multiplicity: int = 1, columns: int = CHANNELS, keys: bool = False) -> Inputs:
    """Boltz's arguments for a batch of two, with padding."""
    mask = torch.ones(2 * multiplicity, N)
    mask[0, -2:] = 0
    made = {"s": torch.randn(2 * multiplicity, N, SINGLE), "z": torch.randn(2, N, N, columns), "mask": mask}
    if keys:
        made["k_in"] = torch.randn(2 * multiplicity, N, SINGLE)
    return {**made, "multiplicity": multiplicity}


def of_batches(
    lead: tuple[int, ...] = (2,), pairs: tuple[int, ...] = (2,), mask: tuple[int, ...] | None = None,
    condition: tuple[int, ...] | None = None,
) -> Inputs:  # fmt: skip
    """OpenFold3's and Protenix's arguments."""
    made: Inputs = {"a": torch.randn(*lead, N, SINGLE), "z": torch.randn(*pairs, N, N, CHANNELS), "s": None}
    if condition is not None:
        made["s"] = torch.randn(*condition, N, models.CONDITION)
    if mask is not None:
        made["mask"] = torch.ones(*mask, N)
        made["mask"][..., -2:] = 0
    return made


PLAIN, CONDITIONED = "attention with pair bias", "conditioned attention with pair bias"
CASES: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "boltz-1": (PLAIN, models.Boltz1PairBias, of_samples),
    "boltz-1 diffusion": (PLAIN, lambda: models.Boltz1PairBias(False), lambda: of_samples(3)),
    "boltz-2": (PLAIN, BoltzPairBias, lambda: of_samples(2, keys=True)),
    "boltz-2 diffusion": (PLAIN, models.BoltzHeads, lambda: of_samples(3, HEADS, keys=True)),
    "openfold3": (PLAIN, models.OpenFold3PairBias, lambda: of_batches(mask=(2,))),
    "openfold3 ungated": (PLAIN, lambda: models.OpenFold3PairBias(gating=False), of_batches),
    "openfold3 diffusion": (
        CONDITIONED, lambda: models.OpenFold3PairBias(True), lambda: of_batches((2, 3), (2, 1), (2, 1), (2, 3)),
    ),
    "openfold3 diffusion ungated": (
        CONDITIONED, lambda: models.OpenFold3PairBias(True, False), lambda: of_batches((2, 1), (1, 3), None, (3,)),
    ),
    "protenix": (PLAIN, lambda: models.ProtenixPairBias(False), lambda: of_batches((), ())),
    "protenix diffusion": (CONDITIONED, models.ProtenixPairBias, lambda: of_batches((3,), (1,), None, (3,))),
}  # fmt: skip


def case(name: str, seed: int = 0) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(seed)
    module = CASES[name][1]()
    for parameter in module.parameters():
        noise = torch.randn_like(parameter)
        parameter.data = noise * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.7 + 0.3 * noise
    return module, CASES[name][2]()


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: one.to(dtype) if isinstance(one, Tensor) else one for name, one in inputs.items()}


def found(call: Callable[..., Tensor], module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """Return the result and all gradients."""
    module.zero_grad()
    tensors = {name: one for name, one in inputs.items() if isinstance(one, Tensor) and name != "mask"}
    leaves = {name: one.clone().requires_grad_() for name, one in tensors.items()}
    result = call(**{**inputs, **leaves})
    (result * torch.arange(result.numel()).mul(1.3).sin().view(result.shape)).sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    gradients = {name: one.grad for name, one in (*module.named_parameters(), *leaves.items()) if one.grad is not None}
    return {"result": result.detach(), **gradients}


def assert_same(draws: list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]]) -> None:
    """Assert that over all draws no tensor has twice the error of the unpatched module in the same dtype, or 2e-5.

    A draw is what the folded, the unpatched and an exact module computed.
    """
    for name in draws[0][2]:
        errors = [0.0, 0.0]
        for ours, plain, exact in draws:
            assert ours.keys() == plain.keys() == exact.keys()
            assert ours[name].dtype == plain[name].dtype
            # Softmax has no gradient for a bias that all keys share: there the rounding of terms of size 1 remains.
            size = float(exact[name].norm()) if exact[name].norm() > 1e-6 else 1.0
            errors = [
                error + float((one[name] - exact[name]).norm()) / size / len(draws)
                for error, one in zip(errors, (ours, plain), strict=True)
            ]
        assert errors[0] <= max(2 * errors[1], 2e-5), f"{name}: error {errors[0]:.2e}, unpatched {errors[1]:.2e}"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("dtype", "route"),
    [
        (torch.float32, "torch"), (torch.float32, "interpret"), (torch.bfloat16, "torch"),
        pytest.param(torch.bfloat16, "interpret", marks=pytest.mark.slow),
    ],
    ids=str,
)  # fmt: skip
def test_result_and_gradients_stay_the_same(name: str, dtype: torch.dtype, route: Mode) -> None:
    draws = []
    for seed in range(1 if dtype == torch.float32 else 4):
        module, inputs = case(name, seed)
        module, inputs = module.to(dtype), cast(inputs, dtype)
        plain = found(module, module, inputs)
        twin = copy.deepcopy(module).double()
        exact = found(twin, twin, cast(inputs, torch.float64))
        assert report(fold(module)).replaced == {CASES[name][0]: 1}
        with ts.use(route):
            draws.append((found(module, module, inputs), plain, exact))
    assert_same(draws)


SHIFTED = [
    ("boltz-1", "s", "torch"), ("boltz-2 diffusion", "z", "interpret"), ("openfold3 diffusion", "a", "torch"),
    ("openfold3 diffusion", "s", "torch"), ("protenix", "a", "torch"),
]  # fmt: skip
"""Arguments whose common offset vanishes in a norm or a softmax, unless autocast rounds them before."""


@pytest.mark.parametrize(("name", "shifted", "route"), [*((name, None, "torch") for name in CASES), *SHIFTED])
def test_autocast(name: str, shifted: str | None, route: Mode) -> None:
    draws = []
    for seed in range(4):
        module, inputs = case(name, seed)
        if shifted is not None:
            inputs[shifted] += 30
        exact = found(module, module, inputs)
        ours = fold(copy.deepcopy(module))
        with torch.autocast("cpu", torch.bfloat16), ts.use(route):
            draws.append((found(ours, ours, inputs), found(module, module, inputs), exact))
    assert_same(draws)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(use_reentrant: bool) -> None:
    module, inputs = case("openfold3 diffusion")
    fold(module)
    wanted = found(module, module, inputs)
    a, z, s, mask = (inputs.pop(name) for name in ("a", "z", "s", "mask"))

    def again(a: Tensor, z: Tensor, s: Tensor) -> Tensor:
        result: Tensor = checkpoint(module, a, z, s, mask, use_reentrant=use_reentrant)
        return result

    made = found(again, module, {"a": a, "z": z, "s": s})
    torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, nullcontext])
def test_evaluation(mode: Callable[[], Any]) -> None:
    for name in CASES:
        module, inputs = case(name)
        wanted = module.eval()(**inputs)
        fold(module)
        with mode():
            torch.testing.assert_close(module(**inputs), wanted, rtol=1e-4, atol=1e-5)


def test_boolean_mask() -> None:
    module, inputs = case("boltz-1")
    wanted = module(**inputs)
    boolean = {**inputs, "mask": inputs["mask"].bool()}
    torch.testing.assert_close(fold(module)(**boolean), wanted, rtol=1e-4, atol=1e-5)


def test_more_keys_than_queries() -> None:
    """As in the windows of Boltz-2's atoms."""
    module, inputs = case("boltz-2 diffusion")
    inputs = {**inputs, "s": inputs["s"][:, :3], "z": inputs["z"][:, :3]}
    wanted = module(**inputs)
    torch.testing.assert_close(fold(module)(**inputs), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_no_residues(name: str) -> None:
    module, inputs = case(name)
    empty = {
        key: one[..., :0, :0, :] if key == "z" else one[..., :0] if key == "mask" else one[..., :0, :]
        for key, one in inputs.items()
        if isinstance(one, Tensor)
    }
    wanted = module(**{**inputs, **empty})
    assert fold(module)(**{**inputs, **empty}).shape == wanted.shape


def test_arguments_that_ask_for_more_run_the_original() -> None:
    boltz, inputs = case("boltz-1")
    fold(boltz)
    moved = boltz(**inputs, to_keys=lambda one: one.roll(1, 1))
    torch.testing.assert_close(moved, type(boltz).forward(boltz, **inputs, to_keys=lambda one: one.roll(1, 1)))
    protenix, inputs = case("protenix diffusion")
    fold(protenix)
    normed = protenix(**inputs, enable_efficient_fusion=True)
    torch.testing.assert_close(normed, type(protenix).forward(protenix, **inputs, enable_efficient_fusion=True))


@pytest.mark.parametrize("name", ["boltz-1", "boltz-1 diffusion"])
def test_bias_is_kept_between_steps_of_diffusion(name: str) -> None:
    module, inputs = case(name)
    twin = fold(copy.deepcopy(module))
    assert report(twin).replaced == {PLAIN: 1}
    caches: list[dict[str, Tensor]] = [{}, {}]
    for step in range(2):
        given = {**inputs, "s": inputs["s"] + step, "z": inputs["z"] * (1 - 2 * step)}
        ours, plain = (one(**given, model_cache=cache) for one, cache in zip((twin, module), caches, strict=True))
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    assert caches[0].keys() == caches[1].keys() == {"z"}


class Recent(models.Boltz1PairBias):
    """Keeps pairs, not their bias."""

    def forward(  # type: ignore[override]  # as published
        self, s: Tensor, z: Tensor, mask: Tensor, multiplicity: int = 1, to_keys: Any = None,
        model_cache: dict[str, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        if model_cache is not None:
            z = model_cache.setdefault("z", z)
        return super().forward(s, z, mask, multiplicity, to_keys)


class InTurn(BoltzPairBias):
    """Samples of a batch in turn, not side by side."""

    def forward(self, s: Tensor, z: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int = 1) -> Tensor:
        return super().forward(s, z.repeat(multiplicity, 1, 1, 1), mask, k_in)


class Halved(models.ProtenixPairBias):
    def forward(self, a: Tensor, s: Tensor | None, z: Tensor) -> Tensor:  # type: ignore[override]  # as an older release
        return super().forward(a, s, z) / 2


class Strict(models.ProtenixPairBias):
    def forward(self, a: Tensor, s: Tensor | None, z: Tensor, layout: Tensor) -> Tensor:  # type: ignore[override]  # as a fork
        return super().forward(a, s, z)


class WithoutNumber(models.BoltzHeads):
    def __init__(self) -> None:
        super().__init__()
        del self.num_heads


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Recent, "its model_cache keeps something else than the published module's"),
        (InTurn, "it computes something else than the published algorithm"),
        (Halved, "it computes something else than the published algorithm"),
        (Strict, "its forward does not take a, z, mask, s"),
        (WithoutNumber, "it has no attribute 'num_heads'"),
        (lambda: models.ProtenixPairBias(cross_attention_mode=True), "its parameters are none that Tilesmith knows"),
    ],
)
def test_other_structure_is_left_with_a_reason(make: Callable[[], nn.Module], reason: str) -> None:
    module = make()
    made = report(fold(nn.ModuleList([module])))
    assert made.replaced == {}
    assert made.left[type(module).__name__].startswith(reason)


@pytest.mark.parametrize("first", ["fold", "change"])
def test_changed_layer_of_the_condition_takes_part(first: str) -> None:
    module, inputs = case("openfold3 diffusion")
    wanted = module(**inputs)

    def change(module: Any) -> None:
        module.layer_norm_a.layer_norm_a.register_forward_hook(lambda layer, given, made: 0 * made)

    for step in (fold, change) if first == "fold" else (change, fold):
        step(module)
    made = module(**inputs)
    assert not torch.allclose(made, wanted)
    torch.testing.assert_close(made, type(module).forward(module, **inputs))
