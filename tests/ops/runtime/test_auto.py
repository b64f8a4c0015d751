"""`auto`: features, fitted models, the order of evidence, mixed sides, and measuring at first sight."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith import storage
from tilesmith.ops import SPECS
from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.auto import first_sight, model, sides
from tilesmith.ops.runtime.auto.features import Features, dtype_class, features
from tilesmith.ops.runtime.auto.first_sight import measure_once
from tilesmith.ops.runtime.auto.fitting import Fitted, Sample, fit
from tilesmith.ops.runtime.auto.model import NEVER, Model, from_data
from tilesmith.ops.runtime.auto.sides import signature, torch_computes
from tilesmith.ops.runtime.operator import Operator

DEVICE = torch.device("cuda", 0)


def operator(name: str) -> Operator[..., Any]:
    found = SPECS[name].op
    assert isinstance(found, Operator)
    return found


def described(name: str, *tensors: Tensor, **more: Any) -> Features | None:
    one = operator(name)
    names = list(one.named(**dict.fromkeys(one._defaults)))
    return features(name, one.named(**dict(zip(names, tensors, strict=False)), **more), 132)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class TestFeatures:
    def test_odd_rows_are_unaligned(self) -> None:
        odd, even = (described("softmax", meta(8191, columns)) for columns in (4097, 4096))
        assert odd is not None
        assert even is not None
        assert (odd["unaligned"], even["unaligned"]) == (1.0, 0.0)
        assert odd["rounding_up"] > 0.9
        assert even["rounding_up"] == 0.0
        assert odd["few_rows"] == 0.0

    def test_layouts_of_a_product_are_seen(self) -> None:
        found = described("matmul", meta(7, 64).t(), meta(7, 32))
        assert found is not None
        assert (found["transposed_a"], found["transposed_b"]) == (1.0, 0.0)
        assert found["m"] == 6
        assert found["unaligned_a"] == 0.0, "its rows of 64 are aligned"

    @pytest.mark.parametrize(
        ("name", "shapes", "more"),
        [
            ("matmul", [(4, 4), (4, 4)], {"activation": "relu"}),
            ("matmul", [(2, 4, 4), (4, 4)], {}),
            ("attention", [(1, 1, 4, 16)] * 3, {"window": (2, 0)}),
            ("attention", [(1, 1, 4, 16)] * 3, {"bias": meta(1, 1, 4, 4)}),
            ("softmax", [(4, 4)], {"dim": 0}),
            ("softmax", [(0, 4)], {}),
            ("attention_varlen", [(4, 1, 16)] * 3, {"cu_seqlens": meta(2)}),
        ],
    )
    def test_calls_of_other_kinds_have_no_features(self, name: str, shapes: Any, more: dict[str, Any]) -> None:
        assert described(name, *(meta(*shape) for shape in shapes), **more) is None

    def test_dtypes_share_models_by_size(self) -> None:
        assert dtype_class({"x": meta(1, dtype=torch.float16)}) == "half"
        assert dtype_class({"x": meta(1, dtype=torch.float32)}) == "single"
        assert dtype_class({"x": meta(1, dtype=torch.float64)}) is None


def samples(rule: Callable[[Features], float], count: int = 80, noise: float = 0.0) -> list[Sample]:
    """Return made-up cases whose log(ours / PyTorch) follows a rule."""
    generator = random.Random(0)
    found = []
    for _ in range(count):
        one = {"bytes": generator.uniform(10, 32), "columns": generator.uniform(0, 16),
               "unaligned": float(generator.random() < 0.4)}  # fmt: skip
        found.append(Sample(one, math.exp(rule(one) + generator.gauss(0, noise)), 1.0))
    return found


def fitted(rule: Callable[[Features], float], **more: Any) -> Fitted:
    found = fit(samples(rule, **more))
    assert found is not None
    return found


class TestFitting:
    def test_planted_threshold_is_recovered(self) -> None:
        one = fitted(lambda features: 0.5 if features["unaligned"] else -0.5)
        assert one.model.takes_torch({"bytes": 20.0, "columns": 8.0, "unaligned": 1.0})
        assert not one.model.takes_torch({"bytes": 20.0, "columns": 8.0, "unaligned": 0.0})
        assert one.behind == 0.0
        assert one.lost < 0.001 < min(one.lost_by_torch, one.lost_by_ours)

    def test_planted_slope_is_recovered(self) -> None:
        one = fitted(lambda features: 0.1 * (features["bytes"] - 21), noise=0.01)
        assert not one.model.takes_torch({"bytes": 12.0, "columns": 8.0, "unaligned": 0.0})
        assert one.model.takes_torch({"bytes": 30.0, "columns": 8.0, "unaligned": 0.0})
        assert one.lost < one.lost_by_torch / 4

    def test_planted_interaction_is_recovered(self) -> None:
        one = fitted(lambda features: 0.4 if features["unaligned"] and features["columns"] > 10 else -0.3, count=160)
        assert one.lost < 0.02 < one.lost_by_ours < one.lost_by_torch
        assert one.model.takes_torch({"bytes": 20.0, "columns": 14.0, "unaligned": 1.0})
        assert not one.model.takes_torch({"bytes": 20.0, "columns": 14.0, "unaligned": 0.0})
        assert not one.model.takes_torch({"bytes": 20.0, "columns": 4.0, "unaligned": 1.0})

    def test_waves_of_two_sizes_need_many_trees(self) -> None:
        def rule(features: Features) -> float:
            return 0.4 * math.sin(features["bytes"]) + 0.3 * math.sin(features["columns"])

        one = fitted(rule, count=400, noise=0.03)
        assert one.kind.endswith("trees of depth 4")
        assert one.lost < one.lost_by_ours / 4
        again = model.from_data(json.loads(json.dumps(one.model.data())))
        for sample in samples(rule, count=20):
            assert again.log_ratio(sample.features) == pytest.approx(one.model.log_ratio(sample.features), abs=0.01)

    def test_unpredictable_times_are_left_to_pytorch(self) -> None:
        one = fitted(lambda features: 0.0, noise=0.3)
        chosen = [one.model.takes_torch(sample.features) for sample in samples(lambda features: 0.0)]
        assert sum(chosen) > 0.9 * len(chosen)
        assert one.behind <= 0.03

    def test_equal_times_are_left_to_pytorch(self) -> None:
        assert fitted(lambda features: 0.0).model.takes_torch({"bytes": 20.0, "columns": 4.0, "unaligned": 1.0})

    def test_always_faster_is_always_taken(self) -> None:
        one = fitted(lambda features: -0.6, noise=0.1)
        assert not any(one.model.takes_torch(sample.features) for sample in samples(lambda features: 0.0))

    def test_few_cases_have_no_model(self) -> None:
        assert fit(samples(lambda features: -1.0, count=11)) is None

    def test_sizes_outside_the_surveys_count_as_the_nearest(self) -> None:
        one = fitted(lambda features: 0.1 * (features["bytes"] - 21)).model
        largest = {"bytes": one.high[0], "columns": 8.0, "unaligned": 0.0}
        assert one.log_ratio({**largest, "bytes": 99.0}) == one.log_ratio(largest)

    @pytest.mark.parametrize(
        "rule", [lambda one: 0.1 * (one["bytes"] - 21), lambda one: 0.5 if one["unaligned"] else -0.5]
    )
    def test_model_survives_json(self, rule: Callable[[Features], float]) -> None:
        one = fitted(rule).model
        again = from_data(json.loads(json.dumps(one.data())))
        for sample in samples(rule, count=20):
            assert again.log_ratio(sample.features) == pytest.approx(one.log_ratio(sample.features), abs=0.01)
        assert again.margin == pytest.approx(one.margin)


FASTER_WHEN_ALIGNED = Model(
    ("bytes", "unaligned"), (0.0, 0.0), (40.0, 1.0), 0.05, trees=(["unaligned", 0.5, -0.5, 0.5],)
)  # fmt: skip


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[torch.device]:
    """Pretend that there is a GPU with an empty table and a model of softmax."""
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Pretended GPU")
    monkeypatch.setattr(sides, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(model, "SHIPPED", tmp_path)
    monkeypatch.setattr(tuning, "_measured_here", {})
    models = {"softmax": {"half": {"forward": FASTER_WHEN_ALIGNED.data()}}}
    (tmp_path / "pretended-gpu.json").write_text(json.dumps({"schema": model.SCHEMA, "models": models}))
    for forget in (tuning.forget_tables, model.forget, sides._slug.cache_clear):
        forget()
    yield DEVICE
    for forget in (tuning.forget_tables, model.forget, sides._slug.cache_clear, dispatch.forget):
        forget()


def torch_wins(columns: int, direction: sides.Direction = "forward", dtype: torch.dtype = torch.bfloat16) -> bool:
    one = operator("softmax")
    arguments = one.completed(x=meta(64, columns, dtype=dtype))
    return one.torch_computes(arguments, DEVICE, direction)


class TestOrderOfEvidence:
    def test_model_decides_for_sizes_that_nobody_measured(self, device: torch.device) -> None:
        assert torch_wins(4097)
        assert not torch_wins(4096)

    def test_without_a_model_our_kernels_compute(self, device: torch.device) -> None:
        assert not torch_wins(4097, "backward")
        assert not torch_wins(4097, dtype=torch.float32)
        assert not torch_computes("softmax", {"x": meta(4, 4097)}, "", torch.device("cpu"), "forward")

    def test_nearest_sizes_decide_where_no_model_does(self, device: torch.device) -> None:
        bucket = operator("softmax").bucket_for(x=meta(64, 4097))
        tuning.keep(device, "winners", "softmax", bucket, {"training": "torch"})
        assert torch_wins(4097, "backward")

    def test_tuned_bucket_overrides_the_model(self, device: torch.device) -> None:
        bucket = operator("softmax").bucket_for(x=meta(64, 4097))
        tuning.keep(device, "winners", "softmax", bucket, {"forward": "tilesmith", "backward": "torch"})
        assert not torch_wins(4097)
        assert torch_wins(4097, "backward")

    def test_measured_call_overrides_everything_for_its_signature_alone(self, device: torch.device) -> None:
        arguments = operator("softmax").completed(x=meta(64, 4096))
        tuning.keep_measured(device, "softmax", signature(arguments, "forward"), "forward", "torch")
        assert torch_wins(4096)
        assert not torch_wins(2048)

    def test_measured_calls_are_read_by_other_processes(
        self, device: torch.device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tuning.keep_measured(device, "softmax", "4x4:bfloat16 -1", "forward", "torch")
        monkeypatch.setattr(tuning, "_measured_here", {})
        assert tuning.measured(device, "softmax", "4x4:bfloat16 -1", "forward") == "torch"
        assert tuning.measured(device, "softmax", "4x4:bfloat16 -1", "backward") is None

    def test_damaged_model_is_ignored(self, device: torch.device, tmp_path: Path) -> None:
        broken = {"schema": model.SCHEMA, "models": {"softmax": {"half": {"forward": {"kind": "line"}}}}}
        (tmp_path / "pretended-gpu.json").write_text(json.dumps(broken))
        model.forget()
        assert not torch_wins(4097)

    def test_signature_tells_strides_and_wanted_gradients_apart(self) -> None:
        x = meta(4, 8)
        assert signature([x, -1, None], "forward") == "4x8:bfloat16 -1 None"
        assert signature([x.t()], "forward") == "8x4[1,8]:bfloat16"
        assert signature([x.requires_grad_()], "backward") == "4x8:bfloat16'"
        assert signature([x], "forward") == "4x8:bfloat16"


class Clock:
    """A timer that calls the action once, and takes the side's time from a table."""

    def __init__(self, **milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.modes: list[str] = []

    def __call__(self, action: Callable[[], object]) -> float:
        action()
        self.modes.append(dispatch.state().mode)
        return self.milliseconds[dispatch.state().mode]


class TestFirstSight:
    @pytest.mark.parametrize("direction", ["forward", "backward"])
    def test_signature_is_measured_once(
        self, device: torch.device, direction: sides.Direction, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x = torch.randn(3, 5, requires_grad=True)
        monkeypatch.setattr(tuning, "table_path", lambda device: storage.cache_directory() / "t.json")
        clock = Clock(triton=2.0, torch=1.0)
        called: list[bool] = []

        def double(x: Tensor) -> Tensor:
            called.append(torch.is_grad_enabled())
            return 2 * x

        for _ in range(3):
            measure_once("double", double, [x], direction, clock)
        assert clock.modes == ["triton", "torch"] * first_sight.ROUNDS
        assert tuning.measured(x.device, "double", signature([x], direction), direction) == "torch"
        assert set(called) == {direction == "backward"}
        assert x.grad is None

    def test_nothing_is_measured_inside_a_capture(self, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tuning, "is_capturing", lambda: True)
        clock = Clock()
        measure_once("double", lambda x: x, [torch.ones(2)], "forward", clock)
        assert clock.modes == []

    def test_call_that_does_not_fit_twice_follows_the_model(self, device: torch.device) -> None:
        def full(action: Callable[[], object]) -> float:
            raise torch.OutOfMemoryError("full")

        x = torch.ones(2)
        measure_once("double", lambda x: x, [x], "forward", full)
        assert tuning.measured(x.device, "double", signature([x], "forward"), "forward") is None

    def test_measure_needs_auto(self) -> None:
        with pytest.raises(ValueError, match="measure=True chooses between kernels and PyTorch, so mode must be auto"):
            ts.use("triton", measure=True)
        with ts.use("auto", measure=True):
            assert dispatch.state().measure
        assert not dispatch.state().measure

    def test_use_measures_each_new_call_on_a_gpu(self, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[str, str]] = []
        monkeypatch.setattr(
            "tilesmith.ops.runtime.operator.measure_once",
            lambda name, call, arguments, direction: seen.append((name, direction)),
        )
        one = operator("softmax")
        pretended = [type("Pretended", (Tensor,), {"device": DEVICE})() for _ in range(1)]
        monkeypatch.setattr(Operator, "torch_computes", lambda *arguments: True)
        with ts.use("auto", measure=True):
            assert one._torch_wins([*pretended, -1])
            (pretended[0]).requires_grad_()
            assert one._torch_wins([*pretended, -1])
        with ts.use("auto"):
            one._torch_wins([*pretended, -1])
        assert seen == [("softmax", "forward"), ("softmax", "forward"), ("softmax", "backward")]


def test_auto_bounds_the_shapes_of_attention_for_which_pytorch_keeps_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    one = operator("attention")
    monkeypatch.setattr(Operator, "torch_computes", lambda *arguments: True)
    monkeypatch.setattr(one, "_by_torch", set())
    most = one.options.most_shapes_by_torch
    assert most is not None

    def by_torch(length: int) -> bool:
        q = meta(1, 4, length, 64)
        return one._torch_wins(one.completed(q=q, k=q, v=q))

    assert [by_torch(length) for length in range(1, most + 3)] == [True] * most + [False, False]
    assert by_torch(1), "a shape for which PyTorch has a plan already"
    assert operator("softmax").options.most_shapes_by_torch is None, "PyTorch keeps nothing for a shape of softmax"


MIXED = [name for name, spec in SPECS.items() if operator(name).options.returns == "all" and spec.differentiable]


@pytest.mark.parametrize("name", ["rms_norm", "softmax", "matmul", "swiglu", "silu", "add_rms_norm"])
def test_our_backward_after_pytorchs_forward_gives_the_same_gradients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name in MIXED
    spec = SPECS[name]
    inputs = spec.inputs(spec.case("odd"), torch.float32, "cpu")
    natively: list[str] = []

    def always(self: Operator[..., Any], arguments: Any) -> bool:
        natively.append(self.name)
        return True

    def gradients() -> list[Tensor]:
        leaves = {one: inputs[one].detach().requires_grad_() for one in spec.leaves(inputs)}
        made = spec.op(**{**inputs, **leaves})
        outputs = [made] if isinstance(made, Tensor) else list(made)
        return list(torch.autograd.grad(outputs, list(leaves.values()), [torch.ones_like(one) for one in outputs]))

    with ts.use("interpret"):
        dispatch.forget()
        expected = gradients()
        dispatch.forget()
        monkeypatch.setattr(Operator, "_torch_computes_forward", always)
        found = gradients()
    dispatch.forget()
    assert name in natively
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_margin_that_nothing_reaches_leaves_all_to_pytorch() -> None:
    assert Model(("bytes",), (0.0,), (1.0,), NEVER, trees=(-1.5,)).takes_torch({"bytes": 0.5})
