"""triangle_multiplicative_update: cuEquivariance's parameters, masks, precisions and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import published
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import tilesmith as ts
import tilesmith.fold as cuequivariance_torch
from covering import covering
from tilesmith.fold import TriMulPrecision, multiplication
from tilesmith.ops.triangle_multiply import triangle_multiply

CHANNELS, HIDDEN, LENGTH = 12, 8, 7
update = cuequivariance_torch.triangle_multiplicative_update


@pytest.fixture(autouse=True, params=["torch", "interpret"])
def route(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use(request.param):
        yield


def leaves(*lead: int, bias: bool = False) -> dict[str, Any]:
    shapes = {"p_in": (2 * HIDDEN, CHANNELS), "g_in": (2 * HIDDEN, CHANNELS), "p_out": (CHANNELS, HIDDEN),
              "g_out": (CHANNELS, CHANNELS)}  # fmt: skip
    made = {"x": torch.randn(*lead, LENGTH, LENGTH, CHANNELS)}
    for name, size in (("norm_in", CHANNELS), ("norm_out", HIDDEN)):
        made |= {f"{name}_weight": 1 + torch.randn(size) / 4, f"{name}_bias": torch.randn(size) / 4}
    made |= {f"{name}_weight": torch.randn(shape) * shape[1] ** -0.5 for name, shape in shapes.items()}
    if bias:
        made |= {f"{name}_bias": torch.randn(shape[0]) / 4 for name, shape in shapes.items()}
    return made


def assert_same(tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, **options: Any) -> None:
    options = {"direction": "outgoing", "mask": None, "eps": 1e-5, **options}
    published.assert_as_published(
        lambda **given: update(**given, **options),
        lambda **given: published.triangle_multiplication(**given, **options),
        tensors,
        dtype,
    )


@covering(dtype=[torch.float32, torch.bfloat16, torch.float16], direction=["outgoing", "incoming"])
def test_output_and_gradients_as_published(direction: str, dtype: torch.dtype) -> None:
    mask = (torch.rand(2, LENGTH, LENGTH) > 0.3).float()
    assert_same(leaves(2), dtype, direction=direction, mask=mask, eps=1e-4)


def test_biases_of_all_layers() -> None:
    assert_same(leaves(1, bias=True), mask=torch.rand(1, LENGTH, LENGTH) > 0.3)


@pytest.mark.parametrize("lead", [(), (1, 2)], ids=["no batch", "two batch dimensions"])
def test_any_number_of_batch_dimensions(lead: tuple[int, ...]) -> None:
    assert_same(leaves(*lead), mask=torch.rand(LENGTH, LENGTH) > 0.3)


def test_arguments_by_position() -> None:
    given = leaves(1)
    mask = torch.ones(1, LENGTH, LENGTH)
    order = [given.get(f"{name}_{kind}") for name in ("norm_in", "p_in", "g_in", "norm_out", "p_out", "g_out")
             for kind in ("weight", "bias")]  # fmt: skip
    arguments: list[Any] = [given["x"], "incoming", mask, *order, 1e-5]
    by_position = update(*arguments)
    wanted = published.triangle_multiplication(direction="incoming", mask=mask, eps=1e-5, **given)
    torch.testing.assert_close(by_position, wanted, rtol=1e-4, atol=1e-5)


def test_norms_without_parameters_have_ones_and_zeros() -> None:
    given = leaves(1)
    plain = {**given, "norm_in_weight": torch.ones(CHANNELS), "norm_in_bias": torch.zeros(CHANNELS),
             "norm_out_weight": torch.ones(HIDDEN), "norm_out_bias": torch.zeros(HIDDEN)}  # fmt: skip
    without = {name: one for name, one in given.items() if not name.startswith("norm")}
    wanted = published.triangle_multiplication(direction="outgoing", mask=None, eps=1e-5, **plain)
    torch.testing.assert_close(update(**without), wanted, rtol=1e-4, atol=1e-5)


def test_layers_without_weights_get_random_ones() -> None:
    x = torch.randn(2, LENGTH, LENGTH, 32, requires_grad=True)
    made = update(x=x, direction="outgoing", mask=torch.ones(2, LENGTH, LENGTH))
    assert made.shape == x.shape
    assert 0.1 < float(made.detach().std()) < 2
    made.sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    assert x.grad is not None


def test_parameters_of_another_dtype_are_cast_and_get_their_gradient() -> None:
    given = {name: one.requires_grad_() for name, one in leaves(1).items()}
    made = update(**{**given, "x": given["x"].to(torch.bfloat16)})
    assert made.dtype == torch.bfloat16
    made.float().sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    assert all(one.grad is not None and one.grad.dtype == torch.float32 for one in given.values())


@pytest.mark.parametrize("precision", [None, *TriMulPrecision, 3, "ieee", "DEFAULT", "tf32"])
def test_precisions_of_single_precision(precision: Any) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    given = leaves(1)
    wanted = published.triangle_multiplication(direction="outgoing", mask=None, eps=1e-5, **given)
    torch.testing.assert_close(update(**given, precision=precision), wanted, rtol=1e-4, atol=1e-5)
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize(("precision", "wanted"), [("ieee", "ieee"), (TriMulPrecision.TF32, "tf32"), (None, None)])
def test_precision_decides_over_pytorchs_setting(
    precision: Any, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    inner = triangle_multiply

    def watching(*args: Any, **named: Any) -> Tensor:
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return inner(*args, **named)

    monkeypatch.setattr(multiplication, "triangle_multiply", watching)
    update(**leaves(1), precision=precision)
    assert seen == [wanted or torch.backends.cuda.matmul.fp32_precision]


@pytest.mark.parametrize("precision", ["bfloat16", "BF16"])
def test_rounding_to_bfloat16_has_gradients(precision: str) -> None:
    given = {name: one.requires_grad_() for name, one in leaves(1).items()}
    made = update(**given, precision=precision)
    assert made.dtype == torch.bfloat16
    rounded = {name: one.to(torch.bfloat16) for name, one in given.items()}
    torch.testing.assert_close(made, update(**rounded))
    made.float().sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    assert all(one.grad is not None for one in given.values())


def test_autocast() -> None:
    given = leaves(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = update(**given)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made.float(), update(**given), rtol=0.1, atol=0.1)


def test_some_rows_at_a_time_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    given, mask = leaves(2), torch.rand(2, LENGTH, LENGTH) > 0.3
    whole = published.results(lambda **one: update(**one, mask=mask), given, torch.float32)
    monkeypatch.setattr(multiplication, "_rows_at_a_time", lambda pairs, parameters: 3)
    chunks = published.results(lambda **one: update(**one, mask=mask), given, torch.float32)
    torch.testing.assert_close(chunks, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.ones(7, 6, 12)}, ValueError, r"x has shape \(7, 6, 12\), but must be \[..., N, N, C\]"),
        ({"mask": torch.ones(3, 7, 7)}, ValueError, r"mask has shape \(3, 7, 7\), but must broadcast to"),
        ({"mask": torch.full((7, 7), 0.5)}, ValueError, "mask has values other than 0 and 1"),
        ({"direction": "sideways"}, ValueError, "direction is 'sideways', but must be one of"),
        ({"precision": "fp8"}, ValueError, "precision is 'fp8', but must be None"),
        ({"precision": 9}, ValueError, "precision is 9, but must be None"),
        ({"p_out_weight": torch.ones(12, 5)}, ValueError, r"p_out_weight has shape \(12, 5\), but must have \(12, 8\)"),
        ({"g_out_bias": torch.ones(5)}, ValueError, r"g_out_bias has shape \(5,\), but must have \(12,\)"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        update(**{**leaves(2), **change})


def test_mask_without_values_to_read() -> None:
    given = {**leaves(2), "mask": torch.ones(2, LENGTH, LENGTH)}
    with FakeTensorMode() as mode:
        fake: dict[str, Any] = {name: mode.from_tensor(one) for name, one in given.items()}
        assert update(**fake).shape == given["x"].shape
