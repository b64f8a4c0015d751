"""Launching in the interpreter: what stands in for Triton's own launch, and how arguments reach the kernel."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Protocol

import numpy as np
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction, TensorHandle
from triton.runtime.jit import JITFunction, mangle_type
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.toolchain.interpreter.host import HostCopies
from tilesmith.toolchain.interpreter.language import Language
from tilesmith.toolchain.interpreter.memory import Memory, Observer, OutOfBounds, Program, is_user_code
from tilesmith.toolchain.interpreter.mends import numpy_dtype, pointer_to
from tilesmith.toolchain.interpreter.operations import following
from tilesmith.toolchain.interpreter.rewriting import as_jit_function

Grid = tuple[int, ...] | list[int] | Callable[[dict[str, Any]], tuple[int, ...]]


class KernelError(RuntimeError):
    """A kernel failed; the message says where and why, and the original error is its cause."""


@dataclass(frozen=True)
class Launched:
    """A launch that has not been performed: the @triton.jit function, its grid, its arguments by name, its options.

    `warmup` is one that only asks for the compiled kernel; its tensors may be nothing but types.
    """

    kernel: Any
    grid: Program
    arguments: dict[str, Any]
    options: dict[str, Any]
    warmup: bool = False


class Performer(Protocol):
    """Whoever takes launches over, to perform as much of them as it sees fit with `interpret` or `launch_as_usual`."""

    def launch(self, launched: Launched) -> Any:
        """What is returned is what the program gets for its launch."""

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        """The one to take of those an autotuner offers; `kernel` is what it tunes."""


# Changing JITFunction changes it for every thread, and autograd runs backward passes in threads of its own.
_contexts: list[Observer | None] = []
_performers: list[Performer] = []
_lock = threading.RLock()
_stock: dict[Any, Any] = {}


def is_interpreting() -> bool:
    """Whether kernels launched now are interpreted."""
    return bool(_contexts)


@contextmanager
def handing_over(performer: Performer) -> Iterator[None]:
    """Inside, whatever is launched goes to this performer instead; the last of several gets it."""
    with interpreting():
        _performers.append(performer)
        try:
            yield
        finally:
            _performers.remove(performer)


@contextmanager
def interpreting(observer: Observer | None = None) -> Iterator[None]:
    """Inside, kernel launches run in the interpreter. Contexts nest; an observer sees all that its own holds."""
    with _lock:
        if not _contexts:
            _stock.update({owner: owner.run for owner in (JITFunction, InterpretedFunction, Autotuner)})
            JITFunction.run = InterpretedFunction.run = _run_interpreted
            Autotuner.run = _run_first_configuration
        _contexts.append(observer)
    try:
        yield
    finally:
        with _lock:
            # Contexts of two threads may end in any order: remove the observer, not the last one.
            _contexts.remove(observer)
            if not _contexts:
                for owner, run in _stock.items():
                    owner.run = run


def interpret(
    kernel: Any,
    grid: Grid,
    arguments: Mapping[str, object],
    observer: Observer | None = None,
    programs: Sequence[Program] | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """One launch of a @triton.jit kernel in the interpreter.

    `programs` are those of the grid to run, for an observer to whom some stand for all; by default every one. `options`
    are those of the launch, such as `num_warps`: they mean nothing here, but a performer may want to know them.
    """
    with interpreting(observer):
        if programs is None:
            kernel[grid](**arguments, **(options or {}))
        else:
            with _lock:
                kernel = as_jit_function(kernel)
                bound = inspect.getcallargs(kernel.fn, **arguments)
                _launch(kernel, _whole_grid(grid, bound), bound, programs)


@cache
def _language() -> Language:
    return Language()


def launch_as_usual(launched: Launched) -> Any:
    """A launch on the GPU, from inside a performer."""
    run = _stock[JITFunction]
    return run(launched.kernel, grid=launched.grid, warmup=False, **launched.arguments, **launched.options)


def _run_first_configuration(tuner: Any, *arguments: Any, **options: Any) -> Any:
    """In place of `Autotuner.run`: time means nothing here, so the first configuration will do."""
    named = {**dict(zip(tuner.arg_names, arguments, strict=False)), **options}
    configuration = tuner.configs[0]
    if _performers:
        configuration = _performers[-1].configuration(_after_pruning(tuner, arguments, options), tuner.fn, named)
    tuner.best_config = configuration
    chosen = configuration.all_kwargs()
    if configuration.pre_hook is not None:
        configuration.pre_hook({**named, **chosen})
    return tuner.fn.run(*arguments, **options, **chosen)


def _after_pruning(tuner: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Sequence[Any]:
    """The configurations that the author's own pruning leaves. What it raises is raised, as it would be on a GPU."""
    if len(tuner.configs) == 1:
        only: Sequence[Any] = tuner.configs
        return only  # Triton, too, has nothing to prune then
    tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
    left: Sequence[Any] = tuner.prune_configs(options)
    return left


def _run_interpreted(kernel: Any, *arguments: Any, grid: Grid, warmup: bool, **options: Any) -> Any:
    """In place of `JITFunction.run`."""
    if warmup and not _performers:
        return None
    with _lock:
        for hook in kernel.pre_run_hooks:
            hook(*arguments, **options)
        kernel = as_jit_function(kernel)
        parameters = {name: value for name, value in options.items() if name in kernel.arg_names}
        bound = inspect.getcallargs(kernel.fn, *arguments, **parameters)
        whole = _whole_grid(grid, bound)
        if not _performers:
            return _launch(kernel, whole, bound)
        rest = {name: value for name, value in options.items() if name not in parameters}
        return _performers[-1].launch(Launched(kernel, whole, bound, rest, warmup))


def _whole_grid(grid: Grid, arguments: dict[str, Any]) -> Program:
    sizes = [int(size) for size in (grid(arguments) if callable(grid) else grid)]
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"grid has {len(sizes)} dimensions; it must have 1, 2 or 3")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _every_program(grid: Program) -> Iterator[Program]:
    return ((x, y, z) for z, y, x in product(*map(range, reversed(grid))))


def _launch(kernel: Any, grid: Program, arguments: dict[str, Any], programs: Sequence[Program] | None = None) -> None:
    observers = [observer for observer in _contexts if observer is not None]
    for observer in observers:
        observer.launch(kernel, grid, arguments)
    copies = HostCopies()
    hosted = {name: copies.hosted(value) for name, value in arguments.items()}
    language = _language()
    builder = language.builder
    builder.memory = Memory(kernel.__name__, hosted, observers)
    builder.set_grid_dim(*grid)
    # Infinities and NaN are values to a kernel, not accidents to warn about.
    with language.in_place(), np.errstate(all="ignore"):
        function = language.rewritten(kernel)
        values = {
            parameter.name: _constant(hosted[parameter.name])
            if parameter.is_constexpr
            else _device_value(parameter.name, hosted[parameter.name], parameter.annotation_type)
            for parameter in kernel.params
        }
        for program in _every_program(grid) if programs is None else programs:
            builder.grid_idx = program
            followers = [observer for observer in observers if observer.follows(program)]
            try:
                with following(builder, followers) if followers else nullcontext():
                    function(**values)
            except OutOfBounds:
                raise
            except Exception as error:
                raise _located(error, kernel.__name__, builder.grid_idx) from error
    copies.write_back()


def _located(error: Exception, kernel: str, program: Program) -> KernelError:
    """The error with the innermost line of the kernel author's source it came through."""
    place, traceback = "", error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if is_user_code(file):
            place = f" ({file}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return KernelError(f"{kernel}{place}, program {program}: {type(error).__name__}: {error}")


def _constant(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _device_value(name: str, value: Any, annotation: str = "") -> Any:
    """An argument as the kernel sees it."""
    if isinstance(value, tuple):
        elements = [_device_value(f"{name}[{index}]", element) for index, element in enumerate(value)]
        return type(value)(*elements) if hasattr(value, "_fields") else tuple(elements)
    if isinstance(value, TensorDescriptor):
        return _device_descriptor(name, value)
    if hasattr(value, "data_ptr"):
        return pointer_to(value.data_ptr(), tl.str_to_ty(mangle_type(value), None).element_ty, name)
    if isinstance(value, int | float):
        scalar = tl.str_to_ty(annotation or mangle_type(value), None)
        return tl.tensor(TensorHandle(np.array([value], dtype=numpy_dtype(scalar)), scalar), scalar)
    return value


def _device_descriptor(name: str, descriptor: Any) -> Any:
    made = _language().semantic.make_tensor_descriptor(
        base=_device_value(name, descriptor.base),
        shape=[_device_value(name, length) for length in descriptor.shape],
        strides=[*(_device_value(name, stride) for stride in descriptor.strides[:-1]), tl.constexpr(1)],
        block_shape=[tl.constexpr(length) for length in descriptor.block_shape],
        padding_option=descriptor.padding,
    )
    made.handle.round_f32_to_tf32 = getattr(descriptor, "round_f32_to_tf32", False)  # new in 3.9
    return made
