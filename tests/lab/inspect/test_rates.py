"""The predicted rate of fp32 dots, by input precision and device."""

from __future__ import annotations

import io
import json

import planted
import pytest
import torch
from reading import HOPPER
from rich.console import Console

from tilesmith.hardware.devices import device
from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Inspection, Kernel, TargetFacts
from tilesmith.lab.inspect.output.json_output import as_json
from tilesmith.lab.inspect.output.page import write_html
from tilesmith.lab.inspect.output.roofline_chart import roofline
from tilesmith.lab.inspect.output.terminal import show

BLOCK = 64
TIMES = 64  # repetitions that make every precision compute-bound
FLOPS = 2 * BLOCK**3 * TIMES
H200, MI300X, MI250X = (device(name).tflop_per_s for name in ("h200", "mi300x", "mi250x"))
AMPERE, CDNA_2, CDNA_3 = ("cuda:80",), ("hip:gfx90a",), ("hip:gfx942",)


def multiplied(precision: str, targets: tuple[str, ...] = HOPPER) -> Inspection:
    a, b, c = torch.randn(BLOCK, BLOCK), torch.randn(BLOCK, BLOCK), torch.empty(BLOCK, BLOCK)
    found = inspect(lambda: planted.single_product[(1,)](a, b, c, TIMES, precision, BLOCK=BLOCK), targets=targets)
    torch.testing.assert_close(c, TIMES * (a @ b), atol=4.0 if precision == "tf32" else 1e-2, rtol=1e-4)
    return found


def on_a_terminal(found: Inspection) -> str:
    output = io.StringIO()
    show(Console(file=output, width=400), found)
    return output.getvalue()


def only_facts(kernel: Kernel) -> TargetFacts:
    (facts,) = kernel.targets.values()
    return facts


@pytest.mark.parametrize(
    ("precision", "targets", "name", "tflop_per_s", "on_matrix_units"),
    [
        ("ieee", HOPPER, "fp32", H200["fp32"], False),
        ("tf32", HOPPER, "tf32", H200["tf32"], True),
        ("tf32x3", HOPPER, "three tf32 products", H200["tf32"] / 3, True),
        pytest.param("bf16x3", HOPPER, "three bf16 products", H200["bf16"] / 3, True, marks=pytest.mark.slow),
        ("bf16x6", HOPPER, "six bf16 products", H200["bf16"] / 6, True),
        pytest.param("ieee", AMPERE, "fp32", 19.5, False, marks=pytest.mark.slow),
        pytest.param("ieee", CDNA_3, "fp32", MI300X["fp32"], True, marks=pytest.mark.slow),
        ("ieee", CDNA_2, "fp32 matrix", MI250X["fp32 matrix"], True),
        pytest.param("bf16x6", CDNA_2, "six bf16 products", MI250X["bf16"] / 6, True, marks=pytest.mark.slow),
    ],
)
def test_floor_follows_the_input_precision_of_fp32_dots(
    precision: str, targets: tuple[str, ...], name: str, tflop_per_s: float, on_matrix_units: bool
) -> None:
    (kernel,) = multiplied(precision, targets).kernels
    facts = only_facts(kernel)
    assert not kernel.errors
    assert kernel.flops_by_kind[f"dot fp32 {precision}"] == FLOPS
    assert facts.predicted_rates == {name: pytest.approx(tflop_per_s)}
    assert facts.predicted_floor_us == facts.predicted_compute_us == pytest.approx(FLOPS / tflop_per_s / 1e6)
    assert facts.tensor_cores == on_matrix_units, "the compiler takes the units whose rate is predicted"


@pytest.mark.parametrize(
    ("targets", "dots_at", "elsewhere_at"),
    [
        (HOPPER, ("tf32", H200["tf32"]), H200["fp32"]),
        (CDNA_3, ("tf32", MI300X["tf32"]), MI300X["fp32"]),
        (CDNA_2, ("fp32 matrix", MI250X["fp32 matrix"]), MI250X["fp32"]),
    ],
)
def test_default_input_precision_counts_as_tf32(
    targets: tuple[str, ...], dots_at: tuple[str, float], elsewhere_at: float
) -> None:
    a, b, c = torch.randn(64, 128), torch.randn(128, 64), torch.empty(64, 64)
    found = inspect(lambda: planted.product[(1,)](a, b, c, 128, BLOCK=64, BLOCK_K=32), targets=targets)
    facts = only_facts(found.kernels[0])
    assert facts.predicted_rates == dict([dots_at, ("fp32", elsewhere_at)])
    sums = found.kernels[0].flops_by_kind["float"]
    assert facts.predicted_compute_us == pytest.approx(2 * 64 * 64 * 128 / dots_at[1] / 1e6 + sums / elsewhere_at / 1e6)


def test_input_precision_of_half_dots_changes_nothing() -> None:
    a, b, c = torch.randn(64, 64).half(), torch.randn(64, 64).half(), torch.empty(64, 64)
    found = inspect(lambda: planted.single_product[(1,)](a, b, c, 1, "ieee", BLOCK=64), targets=HOPPER)
    assert only_facts(found.kernels[0]).predicted_rates == {"fp16": H200["fp16"]}


def test_reports_name_the_rate_behind_the_bound() -> None:
    found = multiplied("bf16x6", (*HOPPER, *CDNA_3))
    text, page = on_a_terminal(found), write_html(found)
    headline = "H200 SXM, 141 GB: compute-bound by six bf16 products at 165 TFLOP/s"
    caption = (
        "predicted least time (cuda:90 compute-bound by six bf16 products at 165 TFLOP/s; "
        "hip:gfx942 compute-bound by six bf16 products at 218 TFLOP/s)"
    )
    assert headline in text
    assert headline in page
    assert caption in text
    assert caption in page
    facts = json.loads(json.dumps(as_json(found)))["kernels"][0]["targets"]["cuda:90"]
    assert facts["predicted_rates"] == {"six bf16 products": pytest.approx(H200["bf16"] / 6)}


def test_roofline_has_a_ceiling_at_the_predicted_rate() -> None:
    def ceilings(precision: str) -> list[str]:
        found = multiplied(precision)
        drawn = roofline(found.kernels[0], found.sector_bytes)
        assert drawn is not None
        return [ceiling.label for ceiling in drawn.charts[0].ceilings]

    landmarks = ["memory 4.8 TB/s", "fp32 66.9 TFLOP/s", "bf16 matrix 989.4 TFLOP/s"]
    assert ceilings("bf16x6") == [*landmarks, "six bf16 products 164.9 TFLOP/s"]
    assert ceilings("ieee") == landmarks


def test_memory_bound_kernel_names_no_compute_rate() -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    found = inspect(lambda: planted.copy[(4,)](x, y, 1024, BLOCK=256), targets=HOPPER)
    text = on_a_terminal(found)
    assert ": memory-bound (" in text
    assert "(cuda:90 memory-bound)" in text
    assert "FLOP/s" not in text
