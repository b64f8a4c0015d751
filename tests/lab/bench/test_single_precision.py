"""The matrix limit of float32: the fastest rate that PyTorch's tf32 switch allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_stopwatch import FakeStopwatch
from torch import Tensor

from tilesmith.hardware.rates import Rate
from tilesmith.lab.bench.output.charts import roofline, size_curves
from tilesmith.lab.bench.output.page import write_html
from tilesmith.lab.bench.output.table import blocks
from tilesmith.lab.bench.result import Row, result
from tilesmith.lab.bench.roofline.device_limits import Limits
from tilesmith.lab.bench.running.bench_units import Source, Unit
from tilesmith.lab.bench.running.measurer import Measurer
from tilesmith.lab.report.content import Points
from tilesmith.spec import Case, Cost, Spec, Work

# Close to an H200, but without a cache, so that small tensors behave like large ones.
RATES = {"bf16": 690.0, "fp16": 660.0, "tf32": 354.0, "fp32": 51.5}
LIMITS = Limits(4.3, 4.4, RATES, launch_us=2.0, launch_host_us=5.0, cache_bytes=1, source="made up")
SIX_PRODUCTS = Rate("six bf16 products", 115.0)
BYTES = 1 << 20


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def measured(tflop_per_s: float, provider: str = "tilesmith", dtype: torch.dtype = torch.float32, size: int = 1) -> Row:
    """Return the row of an operator that reaches this rate in a call of 0.1 ms."""

    def double(x: Tensor) -> Tensor:
        return 2 * x

    case = Case(f"size {size}", rows=16)
    spec = Spec(
        name="product", op=double, reference=double, cases=[case], differentiable=False,
        make_inputs=lambda case, dtype, device: {"x": torch.randn(case.rows, dtype=dtype, device=device)},
        cost=lambda case, dtype: Cost(Work(size * BYTES, round(tflop_per_s * 1e8))),
    )  # fmt: skip
    measurer = Measurer(Source(lambda: spec), FakeStopwatch(call_ms=0.1), LIMITS, warm=False, device="cpu")
    return measurer.row(Unit(case, dtype, "fwd", provider))


def result_of(*rows: Row) -> dict[str, Any]:
    content = result(rows, about={"device": "H200"}, limits=vars(LIMITS), partial=False)
    return json.loads(json.dumps(content, allow_nan=False))  # type: ignore[no-any-return]


def sentences(*rows: Row) -> list[str]:
    points = [block for block in blocks(result_of(*rows)) if isinstance(block, Points)]
    return [sentence for point in points for sentence in point.sentences]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (RATES, SIX_PRODUCTS),
        ({**RATES, "fp32": 120.0}, Rate("fp32", 120.0)),
        ({**RATES, "fp32 matrix": 120.0}, Rate("fp32 matrix", 120.0)),
        ({"fp32": 51.5, "tf32": 354.0}, Rate("fp32", 51.5)),
        ({"bf16": 690.0}, SIX_PRODUCTS),
        ({}, Rate("unknown", float("inf"))),
    ],
)
def test_limit_is_the_fastest_exact_rate(rates: dict[str, float], expected: Rate) -> None:
    assert replace(LIMITS, matmul_tflop_per_s=rates).rate(torch.float32) == expected


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize(
    ("rates", "expected"), [(RATES, Rate("tf32", 354.0)), ({"fp32": 51.5, "bf16": 690.0}, SIX_PRODUCTS)]
)
def test_limit_is_tf32_where_pytorch_allows_it(rates: dict[str, float], expected: Rate) -> None:
    assert replace(LIMITS, matmul_tflop_per_s=rates).rate(torch.float32) == expected


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float64, "fp32")]
)
def test_half_precision_uses_its_own_rate(dtype: torch.dtype, name: str) -> None:
    assert LIMITS.rate(dtype) == Rate(name, RATES[name])


def test_near_the_limit_of_six_products_is_compute_bound() -> None:
    row = measured(97.2)
    assert row.percent_of_limit == pytest.approx(100 * 97.2 / 115)
    assert row.floor_ms == pytest.approx(0.1 * 97.2 / 115)
    assert (row.matrix_limit, row.matrix_limit_tflop_per_s) == ("six bf16 products", 115.0)
    assert (row.verdict or "").startswith("compute-bound: 97 TFLOP/s, 85% of the matrix rate. Try larger tiles")


@pytest.mark.usefixtures("tf32")
def test_the_same_rate_is_far_from_the_limit_of_tf32() -> None:
    row = measured(97.2)
    assert row.percent_of_limit == pytest.approx(100 * 97.2 / 354)
    assert row.matrix_limit == "tf32"
    assert (row.verdict or "").startswith("latency-bound: neither bytes (0% of the memory limit) nor flops (27%")


def test_rivals_share_the_limit() -> None:
    row = measured(51.0, "torch")
    assert row.percent_of_limit == pytest.approx(100 * 51 / 115)


def test_rate_of_fp32_units_gets_advice_on_tensor_cores() -> None:
    verdict = measured(45.0).verdict or ""
    assert verdict.startswith("compute-bound if it does not use tensor cores: 45 TFLOP/s, 87% of the fp32 rate")
    assert "Tensor cores reach 115 TFLOP/s with the same accuracy by six bf16 products" in verdict


@pytest.mark.parametrize("tflop_per_s", [25.0, 60.0])
def test_other_rates_get_no_advice_on_tensor_cores(tflop_per_s: float) -> None:
    assert (measured(tflop_per_s).verdict or "").startswith("latency-bound")


def test_limits_line_names_the_float32_limit_once() -> None:
    said = [one for one in sentences(measured(97.2), measured(51.0, "torch")) if "compared with" in one]
    assert said == [
        "H200: copy 4.30 TB/s, read 4.40 TB/s, GEMM bf16 690, fp16 660, tf32 354, fp32 51.5 TFLOP/s, "
        "float32 compared with 115 TFLOP/s (six bf16 products) (made up)"
    ]


@pytest.mark.parametrize(("tflop_per_s", "dtype"), [(500.0, torch.bfloat16), (0.05, torch.float32)])
def test_limits_line_without_float32_gemms_has_no_float32_limit(tflop_per_s: float, dtype: torch.dtype) -> None:
    row = measured(tflop_per_s, dtype=dtype)
    assert row.error is None
    assert "held against" not in " ".join(sentences(row)) + write_html(result_of(row))


def test_page_shows_and_draws_the_float32_limit() -> None:
    content = result_of(measured(97.2), measured(95.0, size=2))
    assert "115 TFLOP/s (six bf16 products)" in write_html(content)
    drawn, curves = roofline(content), size_curves(content)
    assert drawn is not None
    assert curves is not None
    assert "six bf16 products 115 TFLOP/s" in [ceiling.label for ceiling in drawn.charts[0].ceilings]
    assert [ceiling.label for ceiling in curves.charts[0].ceilings] == ["limit 115"]


def test_old_results_without_a_row_limit_are_drawn() -> None:
    content = result_of(measured(97.2), measured(95.0, size=2))
    for row in content["rows"]:
        del row["matrix_limit"], row["matrix_limit_tflop_per_s"]
    assert "held against" not in write_html(content)
    curves = size_curves(content)
    assert curves is not None
    assert [ceiling.label for ceiling in curves.charts[0].ceilings] == ["limit 354"]
