"""The table of an autotuner's configurations."""

from __future__ import annotations

from typing import Any

import planted
import pytest
import torch
import triton
from reading import HOPPER

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Inspection


def copied(config: str | None, elements: int = 10_000) -> Inspection:
    x, y = torch.randn(elements), torch.empty(elements)

    def grid(constants: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(elements, constants["BLOCK"]),)

    return inspect(lambda: planted.tuned_copy[grid](x, y, elements), targets=HOPPER, config=config)


def test_all_configurations_are_compiled_and_judged() -> None:
    (kernel,) = copied("all").kernels
    odd, large, small = kernel.configurations
    assert [one.values["BLOCK"] for one in kernel.configurations] == [3000, 4096, 1024]
    assert odd.facts.error
    assert "power of 2" in (odd.cannot_win or "")
    assert (large.chosen, small.chosen) == (True, False)
    assert (large.programs, small.programs) == (3, 10)
    assert large.facts.registers > 0
    assert small.facts.num_warps == 8
    assert small.cannot_win is None
    assert small.predicted_us


def test_the_table_is_in_every_output() -> None:
    found = copied("all")
    assert "Configurations of the autotuner on cuda:90" in found.report()  # type: ignore[attr-defined]
    assert "cannot win because it" in found.html()  # type: ignore[attr-defined]
    first, second, _ = found.to_json()["kernels"][0]["configurations"]  # type: ignore[attr-defined]
    assert "does not compile" in first["cannot_win"]
    assert second["chosen"]


def test_without_all_there_is_no_table() -> None:
    assert copied("2").kernels[0].configurations == ()


@triton.autotune(  # type: ignore[untyped-decorator]  # Triton ships no types
    configs=[triton.Config({"BLOCK": 16}, num_warps=4), triton.Config({"BLOCK": 64}, num_warps=4)], key=["times"]
)
@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def tuned_product(a_ptr, b_ptr, c_ptr, times, BLOCK: triton.language.constexpr):  # type: ignore[no-untyped-def]
    planted.single_product(a_ptr, b_ptr, c_ptr, times, "ieee", BLOCK)


def test_a_configuration_that_leaves_multiprocessors_idle_cannot_win() -> None:
    a, b, c = (torch.randn(64, 64) for _ in range(3))

    def grid(constants: dict[str, Any]) -> tuple[int]:
        return (132 if constants["BLOCK"] == 16 else 8,)

    found = inspect(lambda: tuned_product[grid](a, b, c, 100), targets=HOPPER, config="all", programs=1, device="h200")
    many, few = found.kernels[0].configurations
    assert many.cannot_win is None
    assert "idle: 8 programs" in (few.cannot_win or "")


@pytest.mark.parametrize("name", ["configurations", "precision"])
def test_the_schema_knows_the_new_tables(name: str) -> None:
    import json
    from importlib.resources import files

    schema = json.loads((files("tilesmith.lab.schemas") / "inspect.schema.json").read_text())
    assert name in schema["properties"]["kernels"]["items"]["properties"]
