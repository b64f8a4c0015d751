"""Compiles a Triton kernel for a named target, GPU or not, as a launch with the same arguments would.

Signature, alignment and constants are derived by Triton's own launch code, which works for any target: two of its
internal functions, the same from 3.6 to 3.9, are called here and nowhere else.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile, make_backend
from triton.compiler.errors import CompilationError
from triton.runtime.jit import JITFunction, create_function_from_signature

from tilesmith.toolchain.compiler.binary import Binary, read_binary
from tilesmith.toolchain.compiler.errors import captured_stderr, explain
from tilesmith.toolchain.compiler.targets import Target


def compile_kernel(
    kernel: Any,
    target: Target,
    arguments: Mapping[str, object],
    *,
    num_warps: int = 4,
    num_stages: int | None = None,
    **options: object,
) -> Binary:
    """Compiles `kernel` for `target` as a launch with `arguments` would, and reads its binary.

    `arguments` are those of the launch by name, compile-time constants included: tensors, numbers, None, tensor
    descriptors. Alignment follows from the values, so the pointers and strides given should be the real ones. `options`
    are what else a launch accepts (`num_ctas`, `maxnreg`, `waves_per_eu`, …). Raises CompileError when the compiler
    refuses the kernel.
    """
    function = jit_function(kernel)
    _check_names(function, arguments)
    launch: dict[str, object] = {
        "num_warps": num_warps,
        "debug": function.debug or knobs.runtime.debug,
        **options,
        # Last, as a kernel may take `num_warps` or `num_stages` as its own constant.
        **arguments,
    }
    if num_stages is not None:
        launch.setdefault("num_stages", num_stages)
    compiled = _compile_or_explain(function, target, launch)
    return _located_here(read_binary(target, compiled, function.fn.__code__.co_filename), function)


def _located_here(binary: Binary, function: Any) -> Binary:
    """Triton's cache may hold what another checkout of the same lines compiled: name the files of this one."""
    files = {Path(file).name: file for file in _source_files(function, set())}
    accesses = tuple(replace(one, file=files.get(Path(one.file).name, one.file)) for one in binary.accesses)
    return replace(binary, accesses=accesses)


def _source_files(function: Any, seen: set[Any]) -> Iterator[str]:
    """Where a kernel and the device functions it can see are written."""
    seen.add(function)
    yield function.fn.__code__.co_filename
    for value in function.fn.__globals__.values():
        if isinstance(value, JITFunction) and value not in seen:
            yield from _source_files(value, seen)


def jit_function(kernel: Any) -> Any:
    """The `@triton.jit` function inside any autotuning and heuristics around it."""
    function = kernel
    while not isinstance(function, JITFunction) and hasattr(function, "fn"):
        function = function.fn
    if not isinstance(function, JITFunction):
        raise TypeError(f"kernel: expected a function decorated with triton.jit, got {type(kernel).__name__}")
    return function


def _check_names(function: Any, arguments: Mapping[str, object]) -> None:
    parameters = function.signature.parameters
    unknown = [name for name in arguments if name not in parameters]
    if unknown:
        raise ValueError(f"arguments: {function.__name__} has no parameter {', '.join(unknown)}")
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    missing = [name for name in required if name not in arguments]
    if missing:
        raise ValueError(f"arguments: {function.__name__} also needs {', '.join(missing)}")


def _compile_or_explain(function: Any, target: Target, launch: Mapping[str, object]) -> Any:
    printed = io.StringIO()
    try:
        # When ptxas fails, Triton prints the whole PTX.
        with redirect_stdout(printed):
            compiled = _compile(function, target, launch)
    except CompilationError as error:
        raise explain(error, target, function, diagnostics="") from error
    except Exception as error:
        raise explain(error, target, function, _native_diagnostics(function, target, launch)) from error
    print(printed.getvalue(), end="")
    return compiled


def _native_diagnostics(function: Any, target: Target, launch: Mapping[str, object]) -> str:
    """What the native compiler says while it fails a second time.

    The first time nothing is captured: should the compiler abort the process, its last words must reach the terminal.
    """
    with captured_stderr() as log:
        try:
            with redirect_stdout(io.StringIO()):
                _compile(function, target, launch)
        except Exception:
            log.seek(0)
            return log.read().decode(errors="replace")
    return ""


def accepted_options(target: Target, options: Mapping[str, object]) -> dict[str, object]:
    """Those of a launch's options that this target's compiler knows: some are meant for one vendor only."""
    backend = make_backend(GPUTarget(target.backend, target.arch, target.warp_size))
    known = vars(backend.parse_options({"enable_fp_fusion": True}))  # named, or Triton warns
    return {name: value for name, value in options.items() if name in known}


def _compile(function: Any, target: Target, launch: Mapping[str, object]) -> Any:
    gpu_target = GPUTarget(target.backend, target.arch, target.warp_size)
    backend = make_backend(gpu_target)
    bind = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, extra = bind(**launch)
    options, signature, constants, attributes = function._pack_args(backend, dict(launch), bound, specialization, extra)
    source = _source_class(function)(function, signature, constants, attributes)
    return compile(source, target=gpu_target, options=options.__dict__)


def _source_class(function: Any) -> Any:
    if not function.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource
