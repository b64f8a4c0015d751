"""flat_arguments: a NamedTuple in Python, its fields in a schema."""

from __future__ import annotations

import inspect
from typing import Generic, TypeVar

import pytest
import torch
from torch import Tensor
from typing_extensions import NamedTuple  # of typing's, Python 3.10 has no generic ones

from tilesmith.ops.runtime.flat_arguments import flat_arguments

Value = TypeVar("Value")


class Layer(NamedTuple, Generic[Value]):
    weight: Value
    bias: Value | None


class Wanted(NamedTuple):
    first: bool
    second: bool


@flat_arguments
def grouped(x: Tensor, layer: Layer[Tensor], wanted: Wanted, scale: float = 1.0) -> Tensor:
    return torch.stack([x, layer.weight if wanted.second else x, torch.tensor(scale)])


def test_schema_has_one_argument_for_each_field() -> None:
    schema = torch.library.infer_schema(grouped, mutates_args=())
    assert schema == "(Tensor x, Tensor weight, Tensor? bias, bool first, bool second, float scale=1.0) -> Tensor"


def test_signature_names_the_fields() -> None:
    assert list(inspect.signature(grouped).parameters) == ["x", "weight", "bias", "first", "second", "scale"]


def test_fields_by_position_and_by_name_give_the_same() -> None:
    x, weight = torch.tensor(2.0), torch.tensor(3.0)
    by_position = grouped(x, weight, None, False, True, 5.0)
    by_name = grouped(x, second=True, first=False, weight=weight, scale=5.0)
    assert by_position.tolist() == by_name.tolist() == [2.0, 3.0, 5.0]


def test_several_values_follow_the_fields() -> None:
    @flat_arguments
    def last(layer: Layer[Tensor], *numbers: int) -> tuple[int, ...]:
        return numbers

    assert last(torch.ones(1), None, 1, 2) == (1, 2)


@pytest.mark.parametrize(("named", "wrong"), [({"first": True}, "second"), ({"first": True, "third": 1}, "third")])
def test_missing_and_unknown_arguments_are_named(named: dict[str, object], wrong: str) -> None:
    with pytest.raises(TypeError, match=f"^grouped: missing or unknown arguments: .*{wrong}"):
        grouped(torch.ones(1), torch.ones(1), **named)
