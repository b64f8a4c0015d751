# mypy: disable-error-code="no-untyped-call"
# PyTorch does not annotate its rarer functions and base classes.
"""The operators on a GPU: right at every size, also beyond 2³¹ elements, on any stream, in graphs, cheap to call."""

from __future__ import annotations

import fcntl
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
from differentiation import assert_same, backward, forward_and_backward, leaves_of, tensors_of
from torch import Tensor
from typer.testing import CliRunner

import tilesmith as ts
from tilesmith.lab.check import Trial, run
from tilesmith.ops import SPECS
from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.auto import model
from tilesmith.ops.runtime.auto.sides import Direction, signature
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.plan import Plan
from tilesmith.spec import CONTIGUOUS, Case, Inputs, Layout, Spec, is_differentiable

pytestmark = pytest.mark.gpu

MOST_BYTES_IN_EVERY_LAYOUT = 1 << 20
LARGE = 64 << 20  # bytes of inputs and outputs; the reference needs many times more
TURNS, OF_A_TURN = 8, 300 << 20  # bytes for each turn that a large test takes
LONGEST_WAIT = 10.0  # seconds; other tests may wait for the turns of this one
BEYOND_INT32 = 2**31
rms_norm, add, silu = SPECS["rms_norm"].op, SPECS["add"].op, SPECS["silu"].op


@pytest.fixture(autouse=True)
def kernels_and_nothing_else(request: pytest.FixtureRequest) -> Iterator[None]:
    with ts.use("triton"), room_for(request.node):
        yield
        gc.collect()
        torch.cuda.empty_cache()  # while it is still this test's turn


@contextmanager
def room_for(item: pytest.Item) -> Iterator[None]:
    """Make tests that need much GPU memory take turns, since several processes may test on one GPU."""
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    spec, case = given.get("spec"), given.get("case")
    needed = TURNS * OF_A_TURN if "TestBeyondInt32" in item.nodeid else 0
    if isinstance(spec, Spec) and isinstance(case, Case) and spec.cost is not None:
        needed = int(spec.cost(case, torch.float32).forward.bytes)
    count = min(-(-needed // OF_A_TURN), TURNS) if needed >= LARGE else 0
    first = random.randrange(TURNS - count + 1)
    with ExitStack() as stack:
        for turn in range(first, first + count):  # in ascending order, so that no two processes wait for each other
            name = f"tilesmith-tests-that-take-turns-{turn}"
            file = stack.enter_context(open(Path(tempfile.gettempdir()) / name, "w"))
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
        wait_for_memory(share=0.6 * count / TURNS)
        yield


def wait_for_memory(share: float) -> None:
    """Wait until so much GPU memory is free, or time is up: tests in other files take no turns."""
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        free, total = torch.cuda.mem_get_info()
        if free >= share * total:
            return
        time.sleep(0.1)


@pytest.fixture
def inputs(spec: Spec, small_case: Case) -> Inputs:
    torch.manual_seed(0)
    return spec.inputs(small_case, torch.float32, "cuda")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that run from here on."""
    dispatch.forget()
    found: list[Plan] = []
    run_plan = Plan.run

    def noted(plan: Plan, arguments: Any) -> Any:
        found.append(plan)
        return run_plan(plan, arguments)

    monkeypatch.setattr(Plan, "run", noted)
    return found


def layouts(spec: Spec, case: Case, dtype: torch.dtype) -> tuple[Layout, ...]:
    """Contiguous tensors; of small ones every other layout too, each with one of the dtypes."""
    small = spec.cost is None or spec.cost(case, torch.float32).forward.bytes <= MOST_BYTES_IN_EVERY_LAYOUT
    others = [one for one in spec.layouts if one is not CONTIGUOUS] if small else []
    first, step = (spec.dtypes.index(dtype) + spec.cases.index(case)) % len(spec.dtypes), len(spec.dtypes)
    return CONTIGUOUS, *others[first::step]


@pytest.mark.parametrize(
    ("spec", "case", "dtype"),
    [
        pytest.param(spec, case, dtype, id=f"{spec.name}-{case.name}-{str(dtype).removeprefix('torch.')}")
        for spec in SPECS.values()
        for case in spec.cases
        for dtype in spec.dtypes
    ],
)
def test_agrees_with_its_reference(spec: Spec, case: Case, dtype: torch.dtype) -> None:
    for layout in layouts(spec, case, dtype):
        results = list(run(Trial(spec, case, dtype, layout, device="cuda")))
        assert results
        assert not [result for result in results if not result.passed]


def test_our_kernels_compute(operator: Operator[..., Any], inputs: Inputs, runs: list[Plan]) -> None:
    operator(**inputs)
    assert runs


def test_captured_graph_computes_at_every_replay(spec: Spec, inputs: Inputs) -> None:
    leaves = leaves_of(inputs)
    wanted = [value for value in leaves.values() if is_differentiable(value)]

    def step() -> list[Tensor]:
        outputs = tensors_of(spec.op(**leaves))
        gradients = torch.autograd.grad(outputs, wanted, [torch.ones_like(output) for output in outputs])
        return [*outputs, *gradients]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            for value in wanted:
                value.copy_(torch.randn_like(value))
        graph.replay()
        for ours, right in zip(captured, step(), strict=True):
            torch.testing.assert_close(ours, right, rtol=0, atol=0)


def test_inductor_compiles_forward_and_backward_to_one_graph(spec: Spec, inputs: Inputs) -> None:
    def block(**arguments: Any) -> list[Tensor]:
        return [torch.tanh(output) for output in tensors_of(spec.op(**arguments))]

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True)
    assert_same(forward_and_backward(compiled, inputs), forward_and_backward(block, inputs))


def test_autocast_leaves_mixed_dtypes_to_the_operator() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 256, device="cuda")
    weight = torch.randn(256, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        hidden = linear(torch.randn(32, 64, device="cuda"))
        output = silu(rms_norm(hidden, weight))
    assert hidden.dtype == output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    right = F.silu(F.rms_norm(hidden.detach().float(), (256,), weight.detach(), 1e-6))
    torch.testing.assert_close(output.detach().float(), right, rtol=2e-2, atol=2e-2)


def test_kernels_run_on_the_current_stream(spec: Spec, inputs: Inputs) -> None:
    """The data arrives late on its own stream; a kernel on another stream would read old values."""
    right = tensors_of(spec.op(**inputs))
    late = {name: _nans_like(value) for name, value in inputs.items()}
    spec.op(**late)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        for name, value in inputs.items():
            if is_differentiable(value):
                late[name].copy_(value)
        ours = tensors_of(spec.op(**late))
    side.synchronize()
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def _nans_like(value: Any) -> Any:
    return torch.full_like(value, float("nan")) if is_differentiable(value) else value


def test_calls_do_not_wait_for_the_gpu(spec: Spec, inputs: Inputs) -> None:
    leaves = leaves_of(inputs)
    outputs = tensors_of(spec.op(**leaves))
    cotangents = [torch.ones_like(output) for output in outputs]
    torch.autograd.backward(outputs, cotangents)  # compiling may wait for the GPU
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.backward(tensors_of(spec.op(**leaves)), cotangents)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class TestBeyondInt32:
    """More than 2³¹ elements; the last ones and some in the middle are compared."""

    SHAPES = pytest.mark.parametrize("shape", [(BEYOND_INT32 // 4096 + 3, 4096), (BEYOND_INT32 // 3 + 5, 3)], ids=str)

    def compare(self, function: Callable[..., Tensor], right: Callable[..., Tensor], *tensors: Tensor) -> None:
        y = function(*tensors)
        rows = y.shape[0]
        for start in (0, rows // 2, rows - 7):
            parts = [tensor[start : start + 7] if tensor.shape[0] == rows else tensor for tensor in tensors]
            torch.testing.assert_close(y[start : start + 7], right(*parts))

    @SHAPES
    def test_silu(self, shape: tuple[int, int]) -> None:
        self.compare(silu, F.silu, torch.randn(shape, device="cuda", dtype=torch.bfloat16))

    @SHAPES
    def test_add(self, shape: tuple[int, int]) -> None:
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.compare(add, torch.add, x, x.flip(1))

    @SHAPES
    def test_rms_norm(self, shape: tuple[int, int]) -> None:
        weight = torch.randn(shape[1], device="cuda", dtype=torch.bfloat16)
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.compare(rms_norm, lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-6), x, weight)

    @SHAPES
    def test_the_gradient_of_rms_norm(self, shape: tuple[int, int]) -> None:
        weight = torch.randn(shape[1], device="cuda", dtype=torch.bfloat16)
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        (gradient,) = torch.autograd.grad(rms_norm(x, weight), x, x.detach())
        last = x.detach()[-7:].clone().requires_grad_()
        (right,) = torch.autograd.grad(F.rms_norm(last, weight.shape, weight, 1e-6), last, last.detach())
        torch.testing.assert_close(gradient[-7:], right, rtol=2e-2, atol=2e-2)

    def test_rows_far_apart(self) -> None:
        """Few elements, but the last row starts beyond 2³¹."""
        x = torch.empty(BEYOND_INT32 + 4096, device="cuda", dtype=torch.bfloat16).as_strided(
            (3, 512), (BEYOND_INT32 // 2, 1)
        )
        x.copy_(torch.randn(3, 512))
        self.compare(silu, F.silu, x)
        self.compare(rms_norm, lambda x: F.rms_norm(x, (512,), None, 1e-6), x)


LARGE_VIEWS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.randn(2048, 3000, device="cuda").t(),
    "expanded rows": lambda: torch.randn(1, 1000, device="cuda").expand(3000, 1000),
    "expanded columns": lambda: torch.randn(3000, 1, device="cuda").expand(3000, 1000),
    "keys of a packed projection": lambda: torch.randn(8, 512, 3, 16, 64, device="cuda")[:, :, 1],
    "heads before positions": lambda: torch.randn(8, 512, 16, 64, device="cuda").transpose(1, 2),
    "four row dimensions": lambda: torch.randn(8, 6, 8, 6, 99, device="cuda").permute(3, 2, 1, 0, 4)[..., :65],
}


@pytest.mark.parametrize("name", LARGE_VIEWS)
def test_large_tensors_of_any_strides(name: str) -> None:
    torch.manual_seed(0)
    x = LARGE_VIEWS[name]()
    weight = torch.randn(x.shape[-1], device="cuda")
    cases: list[tuple[Spec, Inputs]] = [
        (SPECS["silu"], {"x": x}),
        (SPECS["add"], {"x": x, "y": torch.randn(x.shape, device="cuda")}),
        (SPECS["rms_norm"], {"x": x, "weight": weight, "eps": 1e-6}),
    ]
    for spec, inputs in cases:
        ours, right = {**inputs, "x": x.detach().requires_grad_()}, leaves_of(inputs)
        y, expected = spec.op(**ours), spec.reference(**right)
        torch.testing.assert_close(y, expected)
        assert y.stride() == torch.empty_like(x).stride()
        cotangent = torch.randn(y.shape, device="cuda")
        (gradient,) = torch.autograd.grad(y, ours["x"], cotangent)
        (expected_gradient,) = torch.autograd.grad(expected, right["x"], cotangent)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


def host_microseconds(function: Callable[[], object]) -> float:
    """Return host time per call, without waiting for the GPU: the best of several rounds, as the machine is shared."""
    best = float("inf")
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(300):
            function()
        best = min(best, time.perf_counter() - start)
    torch.cuda.synchronize()
    return best / 300 * 1e6


@pytest.mark.alone
def test_a_call_costs_the_host_little_more_than_pytorchs_own() -> None:
    x = torch.randn(8, 512, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(512, device="cuda", dtype=torch.bfloat16)
    rms_norm(x, weight, 1e-6)
    ours = host_microseconds(lambda: rms_norm(x, weight, 1e-6))
    torchs = host_microseconds(lambda: F.rms_norm(x, (512,), weight, 1e-6))
    assert ours <= 1.5 * torchs, f"{ours:.1f} µs against {torchs:.1f} µs"


def test_a_profiler_sees_the_launches(inputs: Inputs, spec: Spec) -> None:
    seen: list[str] = []

    def hook(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    right = tensors_of(spec.op(**inputs))
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        ours = tensors_of(spec.op(**inputs))
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    assert seen
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    launches = len(seen)
    spec.op(**inputs)
    assert len(seen) == launches


def test_interpreting_a_tensor_on_the_gpu_is_left_to_pytorch(spec: Spec, inputs: Inputs, runs: list[Plan]) -> None:
    with ts.use("interpret"):
        made = tensors_of(spec.op(**inputs))
    assert not runs
    for one, right in zip(made, tensors_of(spec.reference(**inputs)), strict=True):
        torch.testing.assert_close(one, right)


def test_tensors_on_cpu_and_gpu_together_are_rejected() -> None:
    with pytest.raises(ValueError, match="rms_norm: weight is on cpu, but x is on cuda:0"):
        rms_norm(torch.ones(4, 8, device="cuda"), torch.ones(8))


class TestTunedTable:
    @pytest.fixture(autouse=True)
    def empty_table(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
        monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path))
        monkeypatch.setattr(model, "SHIPPED", tmp_path)
        monkeypatch.setattr(tuning, "_measured_here", {})
        for forget in (tuning.forget_tables, model.forget, dispatch.forget):
            forget()
        yield
        for forget in (tuning.forget_tables, model.forget, dispatch.forget):
            forget()

    x = property(lambda self: torch.ones(64, 256, device="cuda"))

    def test_pytorch_computes_where_it_was_measured_faster(self, runs: list[Plan]) -> None:
        x = self.x
        with ts.use("auto"):
            silu(x)
            assert len(runs) == 1
            tuning.keep(x.device, "winners", "silu", tuning.bucket_of([x]), {"forward": "torch"})
            silu(x)
            assert len(runs) == 1
            silu(torch.ones(128, 256, device="cuda"))
            assert len(runs) == 1, "the nearest that was measured"
            silu(torch.ones(64, 256 * 16, device="cuda"))
            assert len(runs) == 2
        with ts.use("triton"):
            silu(x)
        assert len(runs) == 3

    @pytest.mark.alone
    def test_first_sight_measures_once_and_stores_the_winner(self) -> None:
        x = self.x.requires_grad_()
        with ts.use("auto", measure=True):
            for _ in range(3):
                silu(x).sum().backward()
        directions: tuple[Direction, ...] = ("forward", "backward")
        for direction in directions:
            key = signature([x], direction)
            assert tuning.measured(x.device, "silu", key, direction) in ("tilesmith", "torch")

    def test_nothing_is_measured_inside_a_capture(self) -> None:
        x = self.x
        silu(x)
        with ts.use("auto", measure=True):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = silu(x)
        graph.replay()
        torch.testing.assert_close(made, F.silu(x))
        assert tuning.measured(x.device, "silu", signature([x], "forward"), "forward") is None

    def test_a_tuned_configuration_is_launched(self, runs: list[Plan]) -> None:
        x = self.x
        silu(x)
        (choice,) = runs[-1].choices
        tuned = {**choice.config.fields(), "BLOCK_SIZE": 512, "num_warps": 2}
        tuning.keep(x.device, "configs", choice.kernels, choice.bucket, {"config": tuned, "ms": 0.1})
        torch.testing.assert_close(silu(x), F.silu(x))
        assert runs[-1].launches[0].arguments["BLOCK_SIZE"] == 512
        assert runs[-1].launches[0].options()["num_warps"] == 2


def test_doctor_names_the_gpu(tmp_path: Path) -> None:
    from tilesmith.cli import app

    result = CliRunner().invoke(app, ["doctor", "--json", str(tmp_path / "doctor.json")])
    assert result.exit_code == 0
    name = torch.cuda.get_device_name()
    assert name in result.output
    assert json.loads((tmp_path / "doctor.json").read_text())["gpu"]["name"] == name


def test_gradients_accumulate_over_steps(spec: Spec, inputs: Inputs) -> None:
    leaves = leaves_of(inputs)
    for _ in range(2):
        backward(tensors_of(spec.op(**leaves)))
    once = forward_and_backward(spec.op, inputs)
    for name, value in leaves.items():
        if is_differentiable(value):
            torch.testing.assert_close(value.grad, 2 * once[f"gradient of {name}"], rtol=0, atol=0)
