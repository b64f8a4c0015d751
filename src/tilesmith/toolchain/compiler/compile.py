"""Compiling a Triton kernel for a named target, as a launch with the same arguments would. Needs no GPU.

Triton's own launch code derives signature, alignment and constants; that code works for any target. Two of its internal
functions, the same from 3.6 to 3.9, are called only here.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile, make_backend
from triton.compiler.errors import CompilationError
from triton.runtime.cache import triton_key
from triton.runtime.jit import JITFunction, create_function_from_signature

from tilesmith.toolchain.cache_folder import require_writable_cache
from tilesmith.toolchain.compiler.binary import Binary, read_binary
from tilesmith.toolchain.compiler.errors import MiscompileError, captured_stderr, explain, machine_failure
from tilesmith.toolchain.compiler.inline_assembly import (
    compiled_anew,
    has_inline_assembly,
    left_out,
    ptxas_reasons,
)
from tilesmith.toolchain.compiler.lost_assignments import watched_assignments
from tilesmith.toolchain.compiler.targets import Target

_LAUNCH: dict[str, object] = {"num_warps": 4, "debug": False}


def compile_kernel(
    kernel: Any,
    target: Target,
    arguments: Mapping[str, object],
    *,
    num_warps: int = 4,
    num_stages: int | None = None,
    **options: object,
) -> Binary:
    """Compile `kernel` for `target` as a launch with `arguments` would, and return the facts of its binary.

    `arguments` are those of the launch by name, including compile-time constants: tensors, numbers, None, TMA
    descriptors. Alignment follows from their values, so pointers and strides should be the real ones. `options` are
    other options of a launch (`num_ctas`, `maxnreg`, `waves_per_eu`, …). Raises CompileError where the compiler rejects
    the kernel.
    """
    function = jit_function(kernel)
    _check_names(function, arguments)
    launch: dict[str, object] = {
        "num_warps": num_warps,
        "debug": function.debug or knobs.runtime.debug,
        **options,
        # Last, because a kernel may have its own constant `num_warps` or `num_stages`.
        **arguments,
    }
    if num_stages is not None:
        launch.setdefault("num_stages", num_stages)
    compiled = _compile_or_explain(function, target, launch)
    return _located_here(read_binary(target, compiled, function.fn.__code__.co_filename), function)


def _located_here(binary: Binary, function: Any) -> Binary:
    """Return the binary with the files of this checkout: Triton's cache may come from another with the same lines."""
    files = {Path(file).name: file for file in _source_files(function, set())}
    accesses = tuple(replace(one, file=files.get(Path(one.file).name, one.file)) for one in binary.accesses)
    return replace(binary, accesses=accesses)


def _source_files(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield the source files of a kernel and of the device functions in its globals."""
    seen.add(id(function))  # its hash would be that of its source, which another kernel's fault makes impossible
    yield function.fn.__code__.co_filename
    for value in function.fn.__globals__.values():
        if isinstance(value, JITFunction) and id(value) not in seen:
            yield from _source_files(value, seen)


def prepare() -> None:
    """Let Triton hash its own files, which every first compilation of a process needs: half a second."""
    triton_key()


def jit_function(kernel: Any) -> Any:
    """Return the `@triton.jit` function inside autotuning and heuristics."""
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


def require_compilable(
    kernel: Any, target: Target, arguments: Mapping[str, object], known: set[str], **options: object
) -> str:
    """Find errors of a kernel without compiling it to the end, unless it has inline assembly.

    Only the assembler reads inline assembly. Arguments, result and errors are those of `translate_kernel`.
    """
    ir_text = translate_kernel(kernel, target, arguments, known, **options)
    if has_inline_assembly(ir_text):
        _compile_or_explain(jit_function(kernel), target, {**_LAUNCH, **options, **arguments})
    return ir_text


def needs_scratch_memory(ir_text: str, target: Target) -> bool:
    """Return whether a launch must allocate memory for TMA descriptors that the kernel creates."""
    return "tt.make_tensor_descriptor" in ir_text and target.backend == "cuda" and int(target.arch) >= 90


def translate_kernel(
    kernel: Any, target: Target, arguments: Mapping[str, object], known: set[str], **options: object
) -> str:
    """Run the compiler's front end alone, which finds errors of types and shapes, and return its text.

    Raises CompileError; MiscompileError where the front end loses an assignment. `known` holds the specialisations that
    were translated before, whose text is empty, and gets this one.
    """
    function = jit_function(kernel)
    _check_names(function, arguments)
    with watched_assignments() as lost:
        translating = partial(_translate, known=known)
        ir_text: str = _compile_or_explain(function, target, {**_LAUNCH, **options, **arguments}, translating)
    for one in lost:
        raise MiscompileError(target, function.__name__, f"{one}. {one.advice}", one.file, one.line)
    return ir_text


def _compile_or_explain(
    function: Any, target: Target, launch: Mapping[str, object], compiling: Callable[..., Any] | None = None
) -> Any:
    compiling = compiling or _compile
    printed = io.StringIO()
    try:
        # When ptxas fails, Triton prints the whole PTX.
        with redirect_stdout(printed):
            compiled = compiling(function, target, launch)
    except CompilationError as error:
        raise explain(error, target, function) from error
    except OSError as error:
        raise machine_failure(error, target, function) from error
    except Exception as error:
        again = partial(compiling, function, target, launch)
        diagnostics = "" if ptxas_reasons(str(error)) else _native_diagnostics(again)
        raise explain(error, target, function, diagnostics, _ir_text(function, target, launch)) from error
    print(printed.getvalue(), end="")
    return compiled


def _native_diagnostics(compiling: Callable[[], Any]) -> str:
    """Compile again, and return what the native compiler writes to stderr, also where it fails.

    The first compilation does not capture stderr: where the compiler aborts the process, its message must be visible.
    """
    with captured_stderr() as log:
        with suppress(Exception), redirect_stdout(io.StringIO()):
            compiling()
        log.seek(0)
        return log.read().decode(errors="replace")


def accepted_options(target: Target, options: Mapping[str, object]) -> dict[str, object]:
    """Return the launch options that this target's compiler accepts; some are for one vendor only."""
    backend = make_backend(GPUTarget(target.backend, target.arch, target.warp_size))
    known = vars(backend.parse_options({"enable_fp_fusion": True}))  # Triton warns without it
    return {name: value for name, value in options.items() if name in known}


def _compile(function: Any, target: Target, launch: Mapping[str, object]) -> Any:
    require_writable_cache()
    source, backend, options = _source(function, target, launch)
    compiling = partial(compile, source, target=backend.target, options=options.__dict__)
    compiled = compiling()
    errors = left_out(compiled.asm, partial(_native_diagnostics, partial(compiled_anew, compiling)))
    if errors:
        raise RuntimeError("\n".join(errors))
    return compiled


def _ir_text(function: Any, target: Target, launch: Mapping[str, object]) -> str:
    """Return the text of the front end; empty where the front end fails."""
    try:
        return _translate(function, target, launch, set())
    except Exception:
        return ""


def _translate(function: Any, target: Target, launch: Mapping[str, object], known: set[str]) -> str:
    """Return the text of the front end; empty for a specialisation that is `known`."""
    source, backend, options = _source(function, target, launch)
    if source.hash() in known:
        return ""
    known.add(source.hash())
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators = backend.get_codegen_implementation(options)
    return str(source.make_ir(backend.target, options, generators, backend.get_module_map(), context))


def _source(function: Any, target: Target, launch: Mapping[str, object]) -> tuple[Any, Any, Any]:
    """Return what Triton compiles for a launch, the compiler's back end, and its options."""
    backend = make_backend(GPUTarget(target.backend, target.arch, target.warp_size))
    bind = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, extra = bind(**launch)
    options, signature, constants, attributes = function._pack_args(backend, dict(launch), bound, specialization, extra)
    return _source_class(function)(function, signature, constants, attributes), backend, options


def _source_class(function: Any) -> Any:
    if not function.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource
