"""`fold` replaces modules of Boltz, OpenFold, OpenFold3 and Protenix, and the model computes the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import protein_models as proteins
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilesmith as ts
from tilesmith.ops.runtime.dispatch import Mode
from tilesmith.patch import FoldReport, fold, report, unpatch

REPLACED = {
    "triangle multiplication": 4, "triangle attention": 3, "SwiGLU transition": 3, "ReLU transition": 1,
    "MSA row attention": 1, "MSA attention": 1, "outer product mean": 2, "attention with pair bias": 1,
}  # fmt: skip


def found(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return outputs and gradients; as in training, no loss depends on padding."""
    model.zero_grad()
    z, m, s = model(**inputs)
    mask, aligned = inputs["mask"], inputs["aligned"]
    exists = (mask[:, :, None] * mask[:, None, :], aligned, mask)
    outputs = [one * where[..., None] for one, where in zip((z, m, s), exists, strict=True)]
    sum((one * torch.arange(one.numel()).mul(1.3).sin().view(one.shape)).sum() for one in outputs).backward()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
    return {**{str(place): one.detach() for place, one in enumerate(outputs)}, **gradients}


def assert_same(ours: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    """Assert that no tensor has twice the error of the unpatched model in the same dtype, or 2e-5 of its norm."""
    assert ours.keys() == plain.keys()
    for name, right in exact.items():
        # Softmax has no gradient for a bias that all keys share: there the rounding of terms of size 1 remains.
        size = float(right.norm()) if right.norm() > 1e-9 else 1.0
        error, plain_error = ((one[name] - right).norm() / size for one in (ours, plain))
        assert error <= max(2 * plain_error, 2e-5), f"{name}: error {error:.2e}, unpatched {plain_error:.2e}"


@pytest.mark.parametrize("route", ["torch", pytest.param("interpret", marks=pytest.mark.slow)])
def test_outputs_and_gradients_stay_the_same(route: Mode) -> None:
    model, inputs = proteins.model_and_inputs()
    plain = found(model, inputs)
    exact = found(copy.deepcopy(model).double(), {name: one.double() for name, one in inputs.items()})
    with ts.use(route):
        assert fold(model) is model
        made = report(model)
        assert isinstance(made, FoldReport)
        assert made.replaced == REPLACED
        assert made.left == {}
        assert_same(found(model, inputs), plain, exact)


def test_unpatch_restores_every_module() -> None:
    model, inputs = proteins.model_and_inputs()
    wanted = model(**inputs)
    unpatch(fold(model))
    assert report(model) is None
    assert not any("forward" in vars(module) for module in model.modules())
    torch.testing.assert_close(model(**inputs), wanted, rtol=0, atol=0)


def test_folding_twice_starts_again() -> None:
    model, _ = proteins.model_and_inputs()
    assert report(fold(fold(model))).replaced == REPLACED


def test_state_dict_stays_unchanged() -> None:
    model, _ = proteins.model_and_inputs()
    before = list(model.state_dict())
    assert list(fold(model).state_dict()) == before


def test_no_batch_and_two_batch_dimensions() -> None:
    module = proteins.OpenFoldMultiplication()
    ours = fold(proteins.OpenFoldMultiplication())
    ours.load_state_dict(module.state_dict())
    for lead, of_mask in (((), ()), ((2, 3), (2, 3)), ((2, 3), (2, 1)), ((2, 3), (1, 3)), ((2, 3), ()), ((), (2,))):
        z, mask = torch.randn(*lead, 5, 5, proteins.CHANNELS), torch.rand(*of_mask, 5, 5).round()
        torch.testing.assert_close(ours(z, mask), module(z, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [proteins.OpenFoldMultiplication, proteins.TriangleAttention])
def test_no_residues(kind: type[nn.Module]) -> None:
    z, mask = torch.randn(2, 0, 0, proteins.CHANNELS), torch.ones(2, 0, 0)
    assert fold(kind())(z, mask).shape == z.shape


@pytest.mark.parametrize("boltz", [False, True])
def test_pairs_that_no_sequence_has(boltz: bool) -> None:
    module = proteins.OuterProductMean(boltz)
    m, mask = torch.randn(2, 3, 5, proteins.ALIGNED), torch.ones(2, 3, 5)
    mask[0, :, -2:] = 0
    wanted = module(m, mask)
    torch.testing.assert_close(fold(module)(m, mask), wanted, rtol=1e-4, atol=1e-5)


def test_in_place_addition_returns_the_sum() -> None:
    module = fold(proteins.OpenFoldMultiplication())
    z = torch.randn(1, 5, 5, proteins.CHANNELS)
    added = module(z, inplace_safe=True, _add_with_inplace=True)
    torch.testing.assert_close(added, z + module(z))


def test_in_place_addition_without_gradients_changes_the_input() -> None:
    module = fold(proteins.OpenFoldMultiplication())
    z = torch.randn(2, 5, 5, proteins.CHANNELS)
    with torch.no_grad():
        wanted = z + module(z)
        view = z.unbind(0)[1].unsqueeze(0)  # as OpenFold3 takes one template of several
        module(view, inplace_safe=True, _add_with_inplace=True)
    torch.testing.assert_close(z[1], wanted[1])


def test_autocast() -> None:
    model, inputs = proteins.model_and_inputs()
    wanted = model(**inputs)
    fold(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = model(**inputs)
    for one, right in zip(ours, wanted, strict=True):
        assert (one.float() - right).norm() < 0.05 * right.norm()


def test_modes_of_the_caller_do_not_change_what_is_replaced() -> None:
    model, _ = proteins.model_and_inputs()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        assert report(fold(model)).replaced == REPLACED


def test_module_that_computes_something_else_is_left_with_a_reason() -> None:
    class Averaged(proteins.TriangleAttention):
        def forward(self, x: Tensor, mask: Tensor | None = None, *others: Any) -> Tensor:
            return super().forward(x, mask) / 2

    class TriangleOfAnotherKind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    model = nn.ModuleList([Averaged(), TriangleOfAnotherKind(), proteins.BoltzTransition()])
    made = report(fold(model))
    assert made.replaced == {"SwiGLU transition": 1}
    assert made.left["Averaged"] == "it computes something else than the published algorithm"
    assert made.left["TriangleOfAnotherKind"] == "its parameters are none that Tilesmith knows"
    assert "SwiGLU transition (1) by Tilesmith" in str(made)
    assert "Averaged left: it computes something else" in str(made)


class Dropped(proteins.BoltzTransition):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, chunk_size: int | None = None) -> Tensor:
        made: Tensor = self.dropout(super().forward(x))
        return made


class Detached(proteins.BoltzTransition):
    def forward(self, x: Tensor, chunk_size: int | None = None) -> Tensor:
        return super().forward(x.detach()) + 0 * x


@pytest.mark.parametrize("kind", [Dropped, Detached])
def test_module_that_differs_in_training_only_is_left(kind: type[nn.Module]) -> None:
    made = report(fold(nn.ModuleList([kind()])))
    assert made.left == {kind.__name__: "in training it computes something else than the published algorithm"}


def test_modules_of_one_class_that_differ_inside_are_tried_apart() -> None:
    without, dropping = Dropped(), Dropped()
    without.dropout.p = 0.0
    assert report(fold(nn.ModuleList([without, dropping]))).replaced == {"SwiGLU transition": 1}


class Directed(proteins.OpenFoldMultiplication):
    def __init__(self, direction: Any) -> None:
        super().__init__()
        self.direction = direction

    def forward(self, z: Tensor, mask: Tensor | None = None, inplace_safe: bool = False, *others: Any) -> Tensor:
        self._outgoing = self.direction in (Edges.OUTGOING, ("outgoing",), None)
        return super().forward(z, mask)


Edges = Enum("Edges", ["OUTGOING", "INCOMING"])


@pytest.mark.parametrize("directions", [tuple(Edges), (("outgoing",), ("incoming",)), (None, object())])
def test_modules_that_differ_in_any_attribute_are_tried_apart(directions: tuple[Any, Any]) -> None:
    modules, z = [Directed(one) for one in directions], torch.randn(1, 5, 5, proteins.CHANNELS)
    wanted = [copy.deepcopy(module)(z) for module in modules]
    assert report(fold(nn.ModuleList(modules))).replaced == {"triangle multiplication": 2}
    torch.testing.assert_close([module(z) for module in modules], wanted, rtol=1e-4, atol=1e-5)


class Adapter(nn.Module):
    """A layer with an adapter: the weight is that of the layer inside, as libraries of adapters have it."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    @property
    def weight(self) -> Tensor:
        return self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return 2 * F.linear(x, self.inner.weight)


def adapt(module: Any) -> None:
    module.mha.linear_v = Adapter(module.mha.linear_v)


def hook(module: Any) -> None:
    module.mha.linear_v.register_forward_hook(lambda layer, given, made: 2 * made)


def replace_forward(module: Any) -> None:
    inner = module.mha.linear_v
    inner.forward = lambda x: 2 * F.linear(x, inner.weight)


@pytest.mark.parametrize("change", [adapt, hook, replace_forward])
@pytest.mark.parametrize("first", ["fold", "change"])
def test_changed_layer_inside_takes_part(change: Callable[[Any], None], first: str) -> None:
    module, z = proteins.TriangleAttention(), torch.randn(1, 5, 5, proteins.CHANNELS)
    wanted = 2 * module(z)
    for step in (fold, change) if first == "fold" else (change, fold):
        step(module)
    torch.testing.assert_close(module(z), wanted)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "settings",
    [lambda: torch.autocast("cpu", torch.bfloat16), lambda: default_dtype(torch.float64), lambda: torch.device("meta")],
    ids=["autocast", "default dtype", "default device"],
)
def test_folding_depends_on_no_setting_and_draws_no_number(settings: Any) -> None:
    model, _ = proteins.model_and_inputs()
    before = torch.get_rng_state()
    with settings():
        made = report(fold(model))
    assert made.replaced == REPLACED
    assert torch.equal(torch.get_rng_state(), before)


def test_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = proteins.Model()
    assert report(fold(model)).replaced == REPLACED


def test_arguments_that_ask_for_more_run_the_original() -> None:
    class Doubled(proteins.BoltzTransition):
        def forward(self, x: Tensor, chunk_size: int | None = None, twice: bool = False) -> Tensor:
            return super().forward(x) * (2 if twice else 1)

    module = fold(Doubled())
    x = torch.randn(2, 3, proteins.CHANNELS)
    torch.testing.assert_close(module(x, twice=True), 2 * module(x))


def test_module_with_its_own_forward_is_left() -> None:
    module = proteins.BoltzTransition()
    module.forward = lambda x, chunk_size=None: x  # type: ignore[method-assign]  # as another library would
    model = nn.ModuleList([module])
    assert report(fold(model)).left == {"BoltzTransition": "it has a forward of its own"}


def test_something_else_than_a_module_is_named() -> None:
    with pytest.raises(TypeError, match=r"fold: model is a str, but must be a torch\.nn\.Module"):
        fold("boltz")  # type: ignore[type-var]  # the error under test
