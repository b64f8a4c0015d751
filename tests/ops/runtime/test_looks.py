# mypy: disable-error-code="no-untyped-call"
# PyTorch does not annotate `backward`.
"""Calls are told apart by their look, whether a key or a guard finds it, and a plan runs as it is written out."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
from tilesmith.ops.runtime import kernels, plan
from tilesmith.ops.runtime.kernels import MOST_GUARDED, ByLook
from tilesmith.toolchain import launcher

Changed = Callable[[], tuple[Any, ...]]

X = torch.arange(24.0).view(4, 6)
WEIGHT = torch.arange(8.0)


def misaligned() -> Tensor:
    return torch.arange(25.0)[1:].view(4, 6)


OTHER_LOOKS: dict[str, tuple[tuple[Any, ...], Changed]] = {
    "shape": ((X, 1), lambda: (X[:3], 1)),
    "strides": ((X, 1), lambda: (X.view(6, 4).t(), 1)),
    "strides of the second": ((X, WEIGHT[:4]), lambda: (X, WEIGHT[::2])),
    "dtype": ((X, 1), lambda: (X.int(), 1)),
    "device": ((X, 1), lambda: (X.to("meta"), 1)),
    "address": ((X, 1), lambda: (misaligned(), 1)),
    "address of the second": ((X, WEIGHT[:4]), lambda: (X, WEIGHT[1:5])),
    "requires_grad": ((X, 1), lambda: (X.clone().requires_grad_(), 1)),
    "lazy negation": ((X, WEIGHT[:4:2]), lambda: (X, torch.zeros(2, dtype=torch.complex64).conj().imag)),
    "None for a tensor": ((X, WEIGHT), lambda: (X, None)),
    "a tensor for None": ((X, None), lambda: (X, WEIGHT)),
    "a tensor for a number": ((X, 1.0), lambda: (X, torch.ones(()))),
    "value": ((X, 1), lambda: (X, 2)),
    "True for 1": ((X, 1), lambda: (X, True)),
    "1.0 for 1": ((X, 1), lambda: (X, 1.0)),
    "text": ((X, "mean"), lambda: (X, "sum")),
    "sequence": ((X, (1, 1)), lambda: (X, (1, 2))),
    "True in a sequence": ((X, (1, 1)), lambda: (X, (1, True))),
    "list for a tuple": ((X, (1, 1)), lambda: (X, [1, 1])),
    "one argument more": ((X, 1), lambda: (X, 1, 1)),
}


def known(arguments: tuple[Any, ...]) -> ByLook[str]:
    """Return a value for these arguments, found once already, so that a guard finds it from now on."""
    looks: ByLook[str] = ByLook()
    looks.put(arguments, "known")
    assert looks.get(arguments) == "known"
    return looks


def without_keys(arguments: Sequence[Any]) -> None:
    raise AssertionError(f"a key of {arguments} was made")


@pytest.mark.parametrize("arguments", [one for one, _ in OTHER_LOOKS.values()])
def test_guard_finds_a_known_look(arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    looks = known(arguments)
    monkeypatch.setattr(kernels, "look", without_keys)
    copies = tuple(one.clone() if isinstance(one, Tensor) and one.is_contiguous() else one for one in arguments)
    assert looks.get(copies) == "known"


@pytest.mark.parametrize("what", OTHER_LOOKS)
def test_guard_does_not_take_another_look_for_a_known_one(what: str) -> None:
    arguments, changed = OTHER_LOOKS[what]
    looks = known(arguments)
    assert looks.get(changed()) is None
    assert looks.get(arguments) == "known"


def test_guard_sees_the_state_outside_the_arguments() -> None:
    arguments = (X, 1)
    with ts.use("interpret"):  # the first `use` numbers the state of the process again
        pass
    looks = known(arguments)
    with torch.no_grad():
        assert looks.get(arguments) is None
    with torch.inference_mode():
        assert looks.get(arguments) is None
    with ts.use("interpret"):
        assert looks.get(arguments) is None
    assert looks.get(arguments, True) is None
    assert looks.get(arguments) == "known"


def test_guard_keeps_a_copy_of_a_list() -> None:
    sizes = [1, 2]
    looks = known((X, sizes))
    sizes[0] = 3
    assert looks.get((X, sizes)) is None
    assert looks.get((X, [1, 2])) == "known"


def test_nested_tensor_has_no_value() -> None:
    looks = known((X, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their interface may change
        nested = torch.nested.nested_tensor([X, X[:2]])
    looks.put((nested, 1), "other")
    assert looks.get((nested, 1)) is None


def test_guard_keeps_no_tensor_alive() -> None:
    x = torch.ones(3)
    looks = known((x, 1))
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    assert looks.get((torch.ones(3), 1)) == "known"


def test_more_looks_of_one_shape_than_guards_are_told_apart() -> None:
    looks: ByLook[int] = ByLook()
    for _ in range(3):
        for number in range(2 * MOST_GUARDED):
            if looks.get((X, number)) is None:
                looks.put((X, number), number)
            assert looks.get((X, number)) == number
    assert [len(guards) for guards in looks._guarded.values()] == [MOST_GUARDED]


def test_looks_are_found_without_pytorchs_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_TensorGuards", None)
    looks = known((X, 1))
    assert looks.get((X.clone(), 1)) == "known"
    assert looks.get((misaligned(), 1)) is None


class Nothing(TorchDispatchMode):
    """A mode that changes nothing; the dispatcher must see every call inside it."""

    calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += "tilesmith" in str(function)
        return function(*args, **(kwargs or {}))


def test_a_known_call_is_dispatched_inside_a_mode(interpreted_once: None) -> None:
    with ts.use("interpret"):
        for _ in range(3):
            ts.ops.silu(X)
        with Nothing() as mode:
            ts.ops.silu(X)
    assert mode.calls == 1


COTANGENTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: X.sin(),
    "transposed": lambda: X.sin().t().contiguous().t(),
    "expanded": lambda: torch.ones(()).expand(4, 6),
    "misaligned": lambda: misaligned().sin(),
    "between 16-byte vectors": lambda: torch.arange(25.0).sin()[1:].view(4, 6),
    "requires a gradient": lambda: X.sin().requires_grad_(),
    "of another class": lambda: Parameter(X.cos()),
}


@pytest.mark.parametrize("operator", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("cotangent", COTANGENTS)
def test_backward_takes_other_cotangents_than_before(operator: str, cotangent: str) -> None:
    x, weight = (one.clone().requires_grad_() for one in (X.cos(), WEIGHT[:6]))
    ours, theirs = getattr(ts.ops, operator), getattr(torch.nn.functional, operator)
    dy = COTANGENTS[cotangent]()
    with ts.use("interpret"):
        for _ in range(3):
            torch.autograd.grad(ours(x, weight), (x, weight), X.sin())
        found = torch.autograd.grad(ours(x, weight), (x, weight), dy)
        y = ours(x, weight)
        first, second = (torch.autograd.grad(y, (x, weight), dy, retain_graph=True) for _ in range(2))
        (only,) = torch.autograd.grad(ours(x, weight), weight, dy)
    right = torch.autograd.grad(theirs(x, (6,), weight), (x, weight), dy)
    for gradients in (found, first, second):
        torch.testing.assert_close(gradients, right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(only, right[1], rtol=1e-5, atol=1e-5)


@pytest.fixture
def gpu_of_memory(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, tuple[int, ...]]]:
    """Let plans for a CPU run as on a GPU with launches that do nothing; return what each was told."""
    started: list[tuple[str, int, tuple[int, ...]]] = []

    def launch(kernel: Any, *_: Any) -> Any:
        def note(how: str) -> Callable[[int, tuple[int, ...]], None]:
            return lambda stream, addresses: started.append((f"{how} {kernel.__name__}", stream, addresses))

        return SimpleNamespace(start=note("started"), start_watched=note("watched"))

    prepared = plan.Plan.__post_init__

    def on_gpu(one: plan.Plan) -> None:
        prepared(one)
        one._on_gpu, one._index = True, 0

    monkeypatch.setattr(plan.Plan, "__post_init__", on_gpu)
    monkeypatch.setattr(plan, "Launch", launch)
    monkeypatch.setattr(
        plan, "_empty_on_gpu", lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)
    )
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 70 + index, raising=False)
    return started


def test_plan_passes_the_addresses_of_arguments_and_buffers(gpu_of_memory: list[Any]) -> None:
    x, weight = X.half(), WEIGHT[:6]
    y = ts.ops.rms_norm.forward.plan_for(x, weight, 1e-5).run((x, weight, 1e-5))
    assert isinstance(y, Tensor)
    assert (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())
    [(name, stream, addresses)] = gpu_of_memory
    assert name.startswith("started rms_norm")
    assert stream == 70
    assert addresses == (x.data_ptr(), weight.data_ptr(), y.data_ptr())


def test_plan_tells_listeners_of_launches(gpu_of_memory: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    planned = ts.ops.silu.forward.plan_for(X.clone())
    planned.run((X,))
    with monkeypatch.context() as changed:
        changed.setattr(launcher, "listeners", [print])
        planned.run((X,))
    planned.run((X,))
    assert [name.split()[0] for name, _, _ in gpu_of_memory] == ["started", "watched", "started"]
