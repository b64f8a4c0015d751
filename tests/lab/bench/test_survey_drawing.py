"""The distribution of a survey's cases: what a seed stands for."""

from __future__ import annotations

import pytest

from tilesmith.lab.bench.survey.drawing import DRAW, ELEMENT_BYTES, MOST_BYTES, Drawn, draw
from tilesmith.lab.bench.survey.subjects import can_be_drawn, subject, title
from tilesmith.ops import SPECS
from tilesmith.spec import Case, Spec, SpecError

# A seed names a set of cases for ever: stored surveys and other people's figures refer to them.
KNOWN: dict[str, list[Drawn]] = {
    "rms_norm": [
        {"rows": 5, "columns": 20480, "dtype": "float32"},
        {"rows": 1, "columns": 3, "dtype": "bfloat16"},
        {"rows": 919, "columns": 1536, "dtype": "bfloat16"},
    ],
    "softmax": [
        {"rows": 3, "columns": 3072, "dtype": "bfloat16"},
        {"rows": 42642, "columns": 37770, "dtype": "float16"},
        {"rows": 243, "columns": 105, "dtype": "bfloat16"},
    ],
    "cross_entropy": [
        {"rows": 4503, "columns": 49149, "dtype": "bfloat16"},
        {"rows": 422, "columns": 1860, "dtype": "float16"},
        {"rows": 1757, "columns": 65024, "dtype": "bfloat16"},
    ],
    "matmul": [
        {"m": 11152, "n": 20480, "k": 1280, "layout": "TN", "dtype": "bfloat16"},
        {"m": 62, "n": 1844, "k": 21513, "layout": "TN", "dtype": "bfloat16"},
        {"m": 737, "n": 1152, "k": 640, "layout": "TN", "dtype": "bfloat16"},
    ],
    "attention": [
        {
            "batch": 5,
            "heads": 20,
            "key_heads": 20,
            "queries": 256,
            "keys": 256,
            "head_size": 80,
            "causal": True,
            "dtype": "bfloat16",
        },
        {
            "batch": 9,
            "heads": 40,
            "key_heads": 8,
            "queries": 1024,
            "keys": 1024,
            "head_size": 256,
            "causal": True,
            "dtype": "bfloat16",
        },
        {
            "batch": 15,
            "heads": 71,
            "key_heads": 1,
            "queries": 1024,
            "keys": 1024,
            "head_size": 160,
            "causal": True,
            "dtype": "bfloat16",
        },
    ],
    "triangle_multiply": [
        {"batch": 1, "residues": 256, "channels": 256, "direction": "outgoing", "dtype": "float32"},
        {"batch": 1, "residues": 415, "channels": 256, "direction": "outgoing", "dtype": "bfloat16"},
        {"batch": 1, "residues": 41, "channels": 32, "direction": "incoming", "dtype": "bfloat16"},
    ],
    "triangle_attention": [
        {"batch": 1, "residues": 68, "heads": 4, "head_size": 32, "starting": True, "dtype": "bfloat16"},
        {"batch": 1, "residues": 512, "heads": 2, "head_size": 32, "starting": True, "dtype": "bfloat16"},
        {"batch": 1, "residues": 85, "heads": 4, "head_size": 64, "starting": False, "dtype": "bfloat16"},
    ],
    "conv2d": [
        {
            "batch": 6,
            "channels": 16,
            "filters": 320,
            "side": 32,
            "kernel": 3,
            "stride": 2,
            "channels_last": True,
            "dtype": "float32",
        },
        {
            "batch": 78,
            "channels": 192,
            "filters": 128,
            "side": 14,
            "kernel": 3,
            "stride": 2,
            "channels_last": True,
            "dtype": "float32",
        },
        {
            "batch": 1,
            "channels": 100,
            "filters": 320,
            "side": 14,
            "kernel": 3,
            "stride": 1,
            "channels_last": False,
            "dtype": "bfloat16",
        },
    ],
    "transpose": [
        {"rows": 28672, "columns": 3589, "dtype": "float32"},
        {"rows": 6144, "columns": 192, "dtype": "bfloat16"},
        {"rows": 64, "columns": 12288, "dtype": "float32"},
    ],
}


@pytest.mark.parametrize("operator", KNOWN)
def test_seed_7_draws_the_cases_that_it_always_drew(operator: str) -> None:
    assert draw(operator, 7, 3) == KNOWN[operator]


def test_longer_draw_starts_with_the_shorter() -> None:
    assert draw("attention", 3, 5) == draw("attention", 3, 20)[:5]


def test_operators_and_seeds_draw_differently() -> None:
    assert draw("rms_norm", 0, 5) != draw("layer_norm", 0, 5)
    assert draw("rms_norm", 0, 5) != draw("rms_norm", 1, 5)


def test_rows_include_published_odd_and_few_rows() -> None:
    drawn = draw("rms_norm", 0, 400)
    assert sum(case["columns"] % 64 == 0 for case in drawn) > 150
    assert sum(case["columns"] % 8 != 0 for case in drawn) > 100
    assert any(case["rows"] == 1 for case in drawn)
    assert {case["dtype"] for case in drawn} == set(ELEMENT_BYTES)
    assert all(case["rows"] * case["columns"] * ELEMENT_BYTES[case["dtype"]] <= MOST_BYTES for case in drawn)


@pytest.mark.parametrize("operator", DRAW)
def test_every_drawn_case_has_inputs_and_a_cost(operator: str) -> None:
    for drawn in draw(operator, 1, 10):
        one = subject(SPECS[operator], drawn)
        inputs = one.spec.inputs(one.case, one.dtype, "meta")
        assert one.spec.cost is not None
        assert one.spec.cost(one.case, one.dtype).forward.bytes > 0
        assert next(iter(inputs.values())).dtype == one.dtype


def test_options_reach_the_inputs() -> None:
    a_transposed: Drawn = {"m": 5, "n": 6, "k": 7, "layout": "TN", "dtype": "float32"}
    one = subject(SPECS["matmul"], a_transposed)
    inputs = one.spec.inputs(one.case, one.dtype, "cpu")
    assert (inputs["a"].shape, inputs["a"].stride()) == ((5, 7), (1, 5))
    assert (inputs["b"].shape, inputs["b"].stride()) == ((7, 6), (6, 1))
    images: Drawn = {
        "batch": 2, "channels": 3, "filters": 4, "side": 9, "kernel": 5, "stride": 2, "channels_last": True,
        "dtype": "float32",
    }  # fmt: skip
    one = subject(SPECS["conv2d"], images)
    inputs = one.spec.inputs(one.case, one.dtype, "cpu")
    assert inputs["x"].stride() == (243, 1, 27, 3)
    assert SPECS["conv2d"].reference(**inputs).shape == (2, 4, 5, 5)
    for causal in (True, False):
        drawn = {"batch": 1, "heads": 4, "key_heads": 2, "queries": 8, "keys": 8, "head_size": 32, "causal": causal,
                 "dtype": "float16"}  # fmt: skip
        one = subject(SPECS["attention"], drawn)
        assert one.spec.inputs(one.case, one.dtype, "meta")["causal"] is causal
        assert one.spec.cost is not None
        assert one.spec.cost(one.case, one.dtype).forward.flops == 4 * 4 * 32 * (36 if causal else 64)


def test_any_spec_with_rows_and_columns_can_be_drawn() -> None:
    rows = Spec(
        name="mine",
        op=abs,
        reference=abs,
        cases=[Case("a", rows=1, cols=2)],
        make_inputs=lambda case, dtype, device: {},
    )
    assert can_be_drawn(rows)
    assert subject(rows, draw("mine", 0, 1)[0]).case.cols == draw("mine", 0, 1)[0]["columns"]
    assert not can_be_drawn(SPECS["attention_varlen"])
    with pytest.raises(SpecError, match="attention_varlen has no distribution of cases"):
        subject(SPECS["attention_varlen"], draw("mine", 0, 1)[0])


def test_title_says_sizes_options_and_dtype() -> None:
    assert title({"rows": 3, "columns": 4097, "dtype": "bfloat16"}) == "3×4097 bf16"
    assert title({"m": 1, "n": 2, "k": 3, "layout": "NT", "dtype": "float32"}) == "m=1 n=2 k=3 NT fp32"
    assert title({"batch": 1, "causal": True, "dtype": "float16"}) == "batch=1 causal fp16"
    assert title({"batch": 1, "causal": False, "dtype": "float16"}) == "batch=1 fp16"
