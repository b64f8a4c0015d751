"""Launching in the interpreter: the replacement of Triton's launch, and the kernel's arguments."""

from __future__ import annotations

import inspect
import operator
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Protocol, TypeVar

import numpy as np
from triton import knobs
from triton.runtime.autotuner import Autotuner as Autotuner  # the checks of the workshop ask for it too
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from tilesmith.toolchain.interpreter.gluon.machine import DEFAULT_WARPS
from tilesmith.toolchain.interpreter.host import HostCopies, require_launchable
from tilesmith.toolchain.interpreter.kernel_arguments import the_gluon_language, the_language, values_in_kernel
from tilesmith.toolchain.interpreter.loops import EndlessLoop
from tilesmith.toolchain.interpreter.memory import Memory
from tilesmith.toolchain.interpreter.observing.observers import EndlessWait, Observer, OutOfBounds, Program
from tilesmith.toolchain.interpreter.observing.operations import find_overflows, following
from tilesmith.toolchain.interpreter.observing.positions import is_user_code
from tilesmith.toolchain.interpreter.ptx import UnknownOperation
from tilesmith.toolchain.interpreter.rewriting import as_jit_function
from tilesmith.toolchain.interpreter.together.all_programs import CannotFollow, PathRecorder
from tilesmith.toolchain.interpreter.values.variables import stepping

Grid = tuple[int, ...] | list[int] | Callable[[dict[str, Any]], tuple[int, ...]]
UNKNOWN = "the interpreter does not know"  # how the message starts if a kernel uses an operation that is missing here
SECONDS_FOR_OTHERS = 10.0  # to find out whether another program ends a wait
FEW_POLLS = 100  # of those programs


class KernelError(RuntimeError):
    """A kernel failed. The message says where and why; the original error is the cause."""


@dataclass(frozen=True)
class Launched:
    """A launch before it runs: the @triton.jit function, its grid, its arguments by name, its options.

    With `warmup` the program only wants the compiled kernel, and may pass dtypes for tensors. `tuner` is its autotuner.
    """

    kernel: Any
    grid: Program
    arguments: dict[str, Any]
    options: dict[str, Any]
    warmup: bool = False
    tuner: Any = None


class Performer(Protocol):
    """Takes over launches, and performs any part of them with `interpret` or `launch_as_usual`."""

    def launch(self, launched: Launched) -> Any:
        """Perform a launch; the program gets the returned value."""

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        """Choose one of an autotuner's configurations for `kernel`."""


# A change of JITFunction holds for all threads, and autograd runs backward passes in its own threads.
_contexts: list[Observer | None] = []
_performers: list[Performer] = []
_tuners: list[Any] = []  # that launch just now
_lock = threading.RLock()
_stock: dict[Any, Any] = {}
_Path = TypeVar("_Path", bound=PathRecorder)
_Run = Callable[[Program], _Path]


def is_interpreting() -> bool:
    """Whether the interpreter runs kernels that are launched now."""
    return bool(_contexts)


@contextmanager
def handing_over(performer: Performer) -> Iterator[None]:
    """Pass every launch inside the context to this performer; to the innermost, where contexts nest."""
    with interpreting():
        _performers.append(performer)
        try:
            yield
        finally:
            _performers.remove(performer)


@contextmanager
def interpreting(observer: Observer | None = None) -> Iterator[None]:
    """Run kernel launches in the interpreter, inside the context. Contexts nest; an observer sees its own launches."""
    with _lock:
        if not _contexts:
            _stock.update({owner: owner.run for owner in (JITFunction, InterpretedFunction)})
            JITFunction.run = InterpretedFunction.run = _run_interpreted
            _take_over_tuners(Autotuner)
            Autotuner.__init__ = _make_tuner
        _contexts.append(observer)
    try:
        yield
    finally:
        with _lock:
            # Contexts of two threads may end in any order, so remove this observer, not the last.
            _contexts.remove(observer)
            if not _contexts:
                for owner, run in _stock.items():
                    owner.run = run
                Autotuner.__init__ = _stock_tuner


_stock_tuner = Autotuner.__init__


def _take_over_tuners(kind: Any) -> None:
    """Replace `run` of a class of autotuners and of its subclasses: libraries override it to time configurations."""
    if "run" in vars(kind) and vars(kind)["run"] is not _run_first_configuration:
        _stock[kind] = kind.run
        kind.run = _run_first_configuration
    for subclass in kind.__subclasses__():
        _take_over_tuners(subclass)


def _make_tuner(tuner: Any, *arguments: Any, **options: Any) -> None:
    """Replace `Autotuner.__init__`: a library may define its subclass while kernels are interpreted."""
    _stock_tuner(tuner, *arguments, **options)
    _take_over_tuners(type(tuner))


def interpret(
    kernel: Any,
    grid: Grid,
    arguments: Mapping[str, object],
    observer: Observer | None = None,
    programs: Sequence[Program] | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Run one launch of a @triton.jit kernel in the interpreter.

    `programs` selects programs of the grid; by default all run. `options` are those of the launch, such as `num_warps`.
    The interpreter ignores them; a performer may read them.
    """
    with interpreting(observer):
        if programs is None:
            kernel[grid](**arguments, **(options or {}))
        else:
            with _lock:
                kernel = as_jit_function(kernel)
                bound = inspect.getcallargs(kernel.fn, **arguments)
                _launch(kernel, _whole_grid(grid, bound), bound, programs, options)


def launch_as_usual(launched: Launched) -> Any:
    """Launch on the GPU, from inside a performer."""
    given = {**launched.arguments, **launched.options}
    return _stock[JITFunction](launched.kernel, grid=launched.grid, warmup=False, **given)


def _run_first_configuration(tuner: Any, *arguments: Any, **options: Any) -> Any:
    """Replace `Autotuner.run`: use the first configuration, since interpreted times mean nothing."""
    named = {**dict(zip(tuner.arg_names, arguments, strict=False)), **options}
    configuration = tuner.configs[0]
    if _performers:
        configuration = _performers[-1].configuration(_after_pruning(tuner, arguments, options), tuner.fn, named)
    tuner.best_config = configuration
    configured(named, configuration)
    _tuners.append(tuner)
    try:
        return tuner.fn.run(*arguments, **options, **configuration.all_kwargs())
    finally:
        _tuners.pop()


def configured(arguments: Mapping[str, Any], configuration: Any) -> dict[str, Any]:
    """Return the arguments with those of an autotuner's configuration, after its `pre_hook`.

    A hook sets the blocks of tensor descriptors, so compilers and the interpreter must see its effect.
    """
    named = {**arguments, **configuration.all_kwargs()}
    if configuration.pre_hook is not None:
        configuration.pre_hook(named)
    return named


def _after_pruning(tuner: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Sequence[Any]:
    """Return the configurations that the user's pruning keeps. Its errors are raised, as on a GPU."""
    if len(tuner.configs) == 1:
        return list(tuner.configs)  # Triton does not prune in this case either
    tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
    return list(tuner.prune_configs(options))


def _run_interpreted(kernel: Any, *arguments: Any, grid: Grid, warmup: bool, **options: Any) -> Any:
    """Replace `JITFunction.run`."""
    if warmup and not _performers:
        return None
    with _lock:
        for hook in kernel.pre_run_hooks:
            hook(*arguments, **options)
        kernel = as_jit_function(kernel)
        parameters = {name: value for name, value in options.items() if name in kernel.arg_names}
        bound = inspect.getcallargs(kernel.fn, *arguments, **parameters)
        whole = _whole_grid(grid, bound)
        rest = {name: value for name, value in options.items() if name not in parameters}
        require_launchable(kernel, bound, rest)
        launched = Launched(kernel, whole, bound, rest, warmup, next(reversed(_tuners), None))
        return _performers[-1].launch(launched) if _performers else _launch(kernel, whole, bound, options=rest)


def _whole_grid(grid: Grid, arguments: dict[str, Any]) -> Program:
    given = grid(arguments) if callable(grid) else grid
    if not isinstance(given, Iterable):
        raise TypeError(f"grid is {given!r}, which is not a tuple: write kernel[({given!r},)](…), with a comma")
    sizes = [_programs(size, axis) for axis, size in enumerate(given)]
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"grid has {len(sizes)} dimensions; it must have 1, 2 or 3")
    return (*sizes, 1, 1)[:3]  # type: ignore[return-value]  # three of them


def _programs(size: Any, axis: int) -> int:
    """Return the number of programs along an axis of the grid, as Triton's launcher would take it."""
    try:
        programs = operator.index(size)
    except TypeError:
        raise TypeError(f"grid has {size!r} programs along axis {axis}, which is not a whole number") from None
    if programs < 0:
        raise ValueError(f"grid has {size!r} programs along axis {axis}, which is negative")
    return programs


def _every_program(grid: Program) -> Iterator[Program]:
    return ((x, y, z) for z, y, x in product(*map(range, reversed(grid))))


def _launch(
    kernel: Any,
    grid: Program,
    arguments: dict[str, Any],
    programs: Sequence[Program] | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    options = options or {}
    warps = _warps(kernel, arguments, options) if kernel.is_gluon() else 0
    observers = [observer for observer in _contexts if observer is not None]
    for observer in observers:
        observer.launch(kernel, grid, arguments)
    copies = HostCopies()
    hosted = {name: copies.hosted(value) for name, value in arguments.items()}
    language = the_language()
    builder = language.builder
    builder.memory = Memory(kernel.__name__, hosted, observers)
    builder.set_grid_dim(*grid)
    # As in a compiled kernel, tl.device_assert has an effect in debug mode only.
    builder.options = replace(builder.options, debug=bool(kernel.debug or options.get("debug") or knobs.runtime.debug))
    # Infinities and NaN are ordinary values for a kernel, so numpy must not warn.
    with _in_place(kernel), np.errstate(all="ignore"):
        function = language.rewritten(kernel)
        run = partial(function, **values_in_kernel(kernel, hosted))
        ended: list[Program] = []
        for program in _every_program(grid) if programs is None else programs:
            builder.grid_idx = program
            if warps:
                the_gluon_language().machine.begin(warps)
            followers = [observer for observer in observers if observer.follows(program)]
            try:
                # Undefined lanes end first: each context restores the builder that it found.
                with following(builder, followers, not warps and run), stepping(builder, observers), builder.undefined:
                    run()
                    if warps:
                        the_gluon_language().machine.end_partition()
            except OutOfBounds:
                raise
            except Exception as error:
                if isinstance(error, EndlessWait) and not warps:
                    error.is_endless = _nobody_ends(error, builder, run, grid, ended)
                raise _located(error, kernel.__name__, program) from error
            ended.append(program)
    copies.write_back()


def _nobody_ends(
    wait: EndlessWait, builder: Any, run: Callable[[], Any], grid: Program, ended: Sequence[Program]
) -> bool:
    """Run all other programs that have not ended. Return whether they end or wait, and change nothing waited for."""
    waiting, done = builder.grid_idx, set(ended)
    waits, deadline = [wait], time.process_time() + SECONDS_FOR_OTHERS
    observers, polls = builder.memory.observers, builder.most_polls
    builder.memory.observers, builder.most_polls = [], min(polls, FEW_POLLS)
    try:
        for builder.grid_idx in (one for one in _every_program(grid) if one != waiting and one not in done):
            try:
                run()
            except EndlessWait as other:
                waits.append(other)
            if any(one.is_over() for one in waits) or time.process_time() > deadline:
                return False
    except Exception:  # who knows what this program would have done
        return False
    finally:
        builder.memory.observers, builder.most_polls = observers, polls
    return True


@contextmanager
def recording(launched: Launched, observers: Sequence[Observer], kind: type[_Path]) -> Iterator[_Run[_Path]]:
    """Give a function that records one program of a launch."""
    language, builder = the_language(), the_language().builder
    with _lock, _in_place(launched.kernel), np.errstate(all="ignore"):
        builder.memory = memory = Memory(launched.kernel.__name__, launched.arguments, observers)
        builder.set_grid_dim(*launched.grid)
        function, values = language.rewritten(launched.kernel), values_in_kernel(launched.kernel, launched.arguments)

        def run(program: Program) -> _Path:
            builder.grid_idx = program
            memory.observers = []
            path = kind(builder)
            with path:
                try:
                    function(**values)
                except CannotFollow:
                    raise
                except Exception as error:
                    raise CannotFollow(f"program {program} fails: {error}") from error
                finally:
                    memory.observers = observers
            return path

        yield run
        find_overflows(builder, partial(function, **values))


@contextmanager
def _in_place(kernel: Any) -> Iterator[None]:
    """Redirect the language of a kernel to the interpreter."""
    gluon = the_gluon_language() if kernel.is_gluon() else None  # made before triton.language changes
    with the_language().in_place(), nullcontext() if gluon is None else gluon.in_place():
        yield


def _warps(kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    """Return the number of warps of a Gluon kernel, which may be a parameter as well."""
    if options.get("num_ctas", 1) != 1:
        raise KernelError(f"{UNKNOWN} clusters (num_ctas={options['num_ctas']}), which {kernel.__name__} uses")
    return int(options.get("num_warps", arguments.get("num_warps", DEFAULT_WARPS)))


def _located(error: Exception, kernel: str, program: Program) -> KernelError:
    """Return the error with the innermost line in the user's source."""
    if isinstance(error, UnknownOperation):
        return KernelError(f"{UNKNOWN} {error}, which {kernel} uses")
    missing = re.search(r"has no attribute 'create_(\w+)'", str(error)) if isinstance(error, AttributeError) else None
    if missing:
        return KernelError(f"{UNKNOWN} {missing[1]}, which {kernel} uses")
    place, traceback = "", error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if is_user_code(file):
            place = f" ({file}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    where = f"{kernel}{place}, program {program}"
    if isinstance(error, EndlessWait) and not error.is_endless:
        return KernelError(f"{UNKNOWN} how to wait for later programs: {where}: {error}")
    if isinstance(error, EndlessLoop | EndlessWait):
        return KernelError(f"{where}: {error}")
    return KernelError(f"{where}: {type(error).__name__}: {error}")
