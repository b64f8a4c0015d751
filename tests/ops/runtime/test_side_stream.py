"""Side streams: what waits for what while a graph is captured, and that nothing waits elsewhere."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.matmul import matmul
from tilesmith.ops.runtime.composing import side_stream as module
from tilesmith.ops.runtime.composing.side_stream import SideStream
from tilesmith.spec import Spec


class Stream:
    """A CUDA stream for tests: streams of the same name are equal."""

    def __init__(self, name: str, record: list[str]) -> None:
        self.name, self.device, self._record = name, "a GPU", record

    def wait_stream(self, other: Stream) -> None:
        self._record.append(f"{self.name} waits for {other.name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Gpu:
    """Records what was done on which stream, in host order."""

    def __init__(self) -> None:
        self.record: list[str] = []
        self.current = Stream("main", self.record)

    def do(self, what: str, *_: object) -> str:
        self.record.append(f"{what} on {self.current.name}")
        return what

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Pretend that a graph is captured. The pool gives out the captured stream first."""
    gpu, names = Gpu(), iter(("main", "side"))
    monkeypatch.setattr(module, "_side_streams", {})
    monkeypatch.setattr(module, "_is_captured", lambda x: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: gpu.current)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(next(names), gpu.record))
    monkeypatch.setattr(torch.cuda, "stream", gpu.on)
    return gpu


X = torch.zeros(2)


def test_streams_wait_for_each_other(gpu: Gpu) -> None:
    with SideStream(X) as side_stream:
        gpu.do("first")
        assert side_stream(gpu.do, "weights") == "weights"
        gpu.do("second")
        side_stream(gpu.do, "more weights")
        gpu.do("third")
    gpu.do("last")
    assert gpu.record == [
        "first on main",
        "side waits for main", "weights on side",
        "second on main",
        "side waits for main", "more weights on side",
        "third on main",
        "main waits for side",
        "last on main",
    ]  # fmt: skip


def test_streams_are_joined_when_the_block_raises(gpu: Gpu) -> None:
    def fail() -> None:
        with SideStream(X) as side_stream:
            side_stream(gpu.do, "weights")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gpu.record[-1] == "main waits for side"


def test_empty_block_does_not_wait(gpu: Gpu) -> None:
    with SideStream(X):
        gpu.do("all")
    assert gpu.record == ["all on main"]


def test_arguments_are_kept_until_the_end_of_the_block(gpu: Gpu) -> None:
    with SideStream(X) as side_stream:
        read = torch.ones(3)
        kept = weakref.ref(read)
        side_stream(gpu.do, "weights", read)
        del read
        gc.collect()
        assert kept() is not None
    gc.collect()
    assert kept() is None


def test_without_capture_functions_run_on_the_main_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_stream(*_: object) -> None:
        raise AssertionError("a stream was asked for")

    for name in ("current_stream", "Stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, no_stream)
    with SideStream(X) as side_stream:
        assert torch.equal(side_stream(torch.add, X, 1), X + 1)


class Late(SideStream):
    """The slowest side stream: results exist only at the end of the block."""

    functions = 0
    is_separate = True

    def __init__(self, x: Tensor) -> None:
        super().__init__(x)
        self._made: list[tuple[Tensor, Tensor]] = []

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        Late.functions += 1
        self._finish()  # a function may read results of an earlier one on the same stream
        result: Tensor = function(*arguments)
        self._made.append((result, result.clone()))
        for place, _ in self._made:
            place.fill_(torch.nan)
        return result

    def __exit__(self, *error: Any) -> None:
        self._finish()
        super().__exit__(*error)

    def _finish(self) -> None:
        for place, values in self._made:
            place.copy_(values)


def of_spec(spec: Spec, name: str = "odd") -> Callable[[], Tensor]:
    """Return the operator's result on one case, with the same inputs at every call."""

    def computed() -> Tensor:
        torch.manual_seed(0)
        case = next(one for one in spec.cases if one.name == name)
        inputs = spec.inputs(case, torch.float32, "cpu")
        return with_gradients(lambda **given: spec.op(**given), inputs)

    return computed


def with_gradients(function: Callable[..., Tensor], inputs: dict[str, Any]) -> Tensor:
    """Return every gradient of the sum of squares."""
    leaves = [one.requires_grad_() for one in inputs.values() if isinstance(one, Tensor) and one.is_floating_point()]
    function(**inputs).square().sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    assert all(one.grad is not None for one in leaves)
    return torch.cat([one.grad.flatten() for one in leaves if one.grad is not None])


def of_matmul() -> Tensor:
    torch.manual_seed(0)
    shapes = {"a": (2, 5, 8), "b": (8, 12), "bias": (12,)}
    return with_gradients(lambda **given: matmul(**given), {name: torch.randn(one) for name, one in shapes.items()})


@pytest.mark.parametrize(
    ("place", "computed"),
    [
        pytest.param("attention_update.update", of_spec(SPECS["attention_update"]), id="attention_update"),
        pytest.param("triangle_multiply.exact.update", of_spec(SPECS["triangle_multiply"]), id="triangle_multiply"),
        pytest.param("outer_product_mean.backward", of_spec(SPECS["outer_product_mean"]), id="outer_product_mean"),
        pytest.param(
            "outer_product_mean.few_sequences_backward",
            of_spec(SPECS["outer_product_mean"], "few"),
            id="outer_product_mean of few sequences",
        ),
        pytest.param("transition", of_spec(SPECS["transition"], "odd"), id="transition"),
        pytest.param("matmul.operator", of_matmul, id="matmul"),
    ],
)
def test_gradients_do_not_read_results_of_the_side_stream(
    place: str, computed: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("tilesmith.ops.triangle_multiply.operator"), "MOST_FUSED_EXACT_ELEMENTS", 0)
    with ts.use("interpret"):
        right = computed()
        monkeypatch.setattr(import_module(f"tilesmith.ops.{place}"), "SideStream", Late)
        before = Late.functions
        assert torch.equal(computed(), right)
    assert Late.functions > before, "nothing ran on the side stream"
    assert right.isfinite().all()
