"""How `check` runs an operator: fixed seed, no tf32, memory filled with NaN, interpreted kernels, flat arguments."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilesmith.lab.reproducible_random import reproducible_random
from tilesmith.spec import Inputs, Spec, called
from tilesmith.toolchain import interpreter

EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


@contextmanager
def seeded(device: str, seed: int = 0) -> Iterator[None]:
    """Use the same random numbers every time and on every machine, and restore the caller's generator."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if device != "cpu" else []):
        torch.manual_seed(seed)
        with reproducible_random():
            yield


_lock = threading.Lock()
_exact_blocks = 0
_switches = ExitStack()


@contextmanager
def exact_products() -> Iterator[None]:
    """Disable tf32: PyTorch uses it for some sizes only, so its error would say nothing about ours.

    PyTorch's switches hold for all threads: the first of overlapping blocks disables tf32, the last one restores it.
    """
    global _exact_blocks
    with _lock:
        if _exact_blocks == 0:
            _switches.enter_context(_tf32_disabled())
        _exact_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _exact_blocks -= 1
            if _exact_blocks == 0:
                _switches.close()


@contextmanager
def _tf32_disabled() -> Iterator[None]:
    try:
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the caller uses PyTorch's newer switches, which exclude the older ones
        convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # created at run time
        with _switched(torch.backends.cuda.matmul), _switched(convolutions):
            yield
        return
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def _switched(products: Any) -> Iterator[None]:
    before = products.fp32_precision
    products.fp32_precision = "ieee"
    try:
        yield
    finally:
        products.fp32_precision = before


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill new memory with NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # a module property
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*deterministic")  # we set the mode ourselves
        # Same as torch.use_deterministic_algorithms, without two seconds of importing torch.compile's back end.
        torch._C._set_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]  # likewise
        try:
            yield
        finally:
            torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]  # likewise


class ZeroedIntegers(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    """Fill new memory of integers with zeros.

    Poisoned memory holds the largest integer. A mask such as `index < n` hides it, and zero passes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and importing torch.compile's back end takes two seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in EMPTY and not made.is_floating_point() and not made.is_complex():
            made.zero_()
        return made


@contextmanager
def uncompiled(device: str) -> Iterator[None]:
    """Run functions under `torch.compile` as they are written on a CPU: their kernels are interpreted, not traced."""
    with ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(patch.dict(os.environ, TORCHDYNAMO_DISABLE="1"))  # for functions compiled from now on
            if "torch._dynamo" in sys.modules:  # otherwise no function is compiled yet; importing it takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def kernels_on(device: str, *observers: interpreter.Observer) -> Iterator[None]:
    """Run kernels in the interpreter on a CPU, seen by these observers; elsewhere on the device."""
    if device == "cpu":
        with ExitStack() as stack:
            for observer in observers or (interpreter.Observer(),):
                stack.enter_context(interpreter.interpreting(observer))
            yield
    else:
        yield
        torch.cuda.synchronize()  # raises the error of a failed kernel here, not at a later call


def with_flat_arguments(spec: Spec, example: Inputs) -> Spec:
    """Return the spec with each tensor of a list or tuple as an argument of its own, such as xs[0] of xs.

    Layouts, float64, gradients and changed inputs then follow these tensors as they follow any other argument.
    """
    several = {name: value for name, value in example.items() if _holds_tensors(value)}
    if not several:
        return spec

    @wraps(spec.make_inputs)
    def make_inputs(*given: Any) -> Inputs:
        made = spec.make_inputs(*given)
        if not isinstance(made, Mapping):
            values = made if isinstance(made, list | tuple) else [made]
            made = dict(zip(inspect.signature(spec.op).parameters, values, strict=False))
        return _flat(made)

    def of_flat(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(**flat: Any) -> Any:
            nested: dict[str, Any] = {}
            for key, value in flat.items():
                name = key.partition("[")[0]
                if name == key:
                    nested[name] = value
                else:
                    nested.setdefault(name, []).append(value)
            found = {name: value if name in flat else type(several[name])(value) for name, value in nested.items()}
            return called(function, found)

        signature = inspect.Signature([inspect.Parameter("flat", inspect.Parameter.VAR_KEYWORD)])
        call.__signature__ = signature  # type: ignore[attr-defined]  # functions accept it
        return call

    fixed = [*spec.fixed, *_flat({name: several[name] for name in spec.fixed if name in several})]
    return replace(spec, op=of_flat(spec.op), reference=of_flat(spec.reference), make_inputs=make_inputs, fixed=fixed)


def _flat(inputs: Mapping[str, Any]) -> Inputs:
    found: Inputs = {}
    for name, value in inputs.items():
        parts = enumerate(value) if _holds_tensors(value) else ()
        found |= {f"{name}[{number}]": one for number, one in parts} or {name: value}
    return found


def _holds_tensors(value: Any) -> bool:
    return type(value) in (list, tuple) and any(isinstance(one, torch.Tensor) for one in value)
