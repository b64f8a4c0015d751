"""The Triton kernels of `torch.compile`: Inductor generates them, and their launches are inspected like any other.

Inductor starts its kernels past `JITFunction.run` and compiles them in processes of its own. Here they are loaded from
their source and launched as a user's kernel would be, with the first configuration that Inductor names.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import triton

from tilesmith.lab.inspect.running.tensor_tracker import GPU, HOST, TensorTracker

_STARTS_KERNELS = "torch._inductor.runtime.triton_heuristics"
_LOADS_KERNELS = "torch._inductor.async_compile"
_SETS_DRIVER = "torch._inductor.runtime.triton_helpers"
_NAMES_CUDA = "torch._dynamo.device_interface"
_stock_compile: Callable[..., Any] = torch.compile
_NOT_HERE = {  # these need a GPU or other processes
    "max_autotune": False,
    "compile_threads": 1,
    "fx_graph_cache": False,
    "joint_graph_constant_folding": False,
    "triton.cudagraphs": False,
}


@contextmanager
def inductor_watched(tensors: TensorTracker, pretend_gpu: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Let the kernels of Inductor be launched as a user's kernels. `note` receives what the user should know."""
    with ExitStack() as changes:
        changes.enter_context(_after_import(_STARTS_KERNELS, lambda module: _launch_plainly(module, changes)))
        changes.enter_context(_after_import(_LOADS_KERNELS, lambda module: _load_in_place(module, changes)))
        if pretend_gpu:
            changes.enter_context(_after_import(_SETS_DRIVER, lambda module: _keep_driver(module, changes)))
            for module, name, value in _cuda_of_inductor():
                changes.enter_context(patch.object(module, name, value, create=True))
            changes.enter_context(_after_import(_NAMES_CUDA, lambda module: _name_stand_ins(module, changes)))
            _forget_missing_gpu()
            changes.callback(_forget_missing_gpu)
        compiling = _Compiling(tensors, pretend_gpu, note, changes)
        changes.enter_context(patch.object(torch, "compile", compiling.compile))
        yield


def _forget_missing_gpu() -> None:
    """Make PyTorch look again whether Triton works: it keeps the answer of the first time."""
    from torch.utils import _triton

    for function in vars(_triton).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


class _Compiling:
    """`torch.compile` for an inspected program."""

    def __init__(
        self, tensors: TensorTracker, pretend_gpu: bool, note: Callable[[str], None], changes: ExitStack
    ) -> None:
        self._tensors = tensors
        self._note = note
        self._changes = changes
        self._moving = _Moving() if pretend_gpu else None
        self._is_prepared = False

    def compile(self, model: Any = None, **options: Any) -> Any:
        """Stand in for `torch.compile`. A function that cannot be compiled here runs as it is."""
        if model is None:
            return lambda function: self.compile(function, **options)
        if isinstance(model, type):
            return model  # torch, too, returns the class, whose static methods it leaves as they are
        if options.get("backend", "inductor") != "inductor":
            return _stock_compile(model, **options)
        self._prepare()
        kept = {name: options[name] for name in ("fullgraph", "dynamic") if name in options}  # no tuning, no CUDA graph
        compiled = _stock_compile(model, backend=self._backend, **kept)
        if not isinstance(model, torch.nn.Module):
            return self._called(compiled, model)
        compiled.forward = self._called(compiled.forward, model)
        return compiled

    def _backend(self, graph: Any, inputs: Sequence[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def moved(graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
            with self._moving.to_gpu(graph, inputs) if self._moving else nullcontext(inputs) as example:
                return compile_fx_inner(graph, example, **options)

        return compile_fx(graph, inputs, inner_compile=moved)

    def _called(self, compiled: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
        fails = False

        @wraps(plain.forward if isinstance(plain, torch.nn.Module) else plain)
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal fails
            if not fails:
                try:
                    with _without_modes(), self._moving.tracing() if self._moving else nullcontext():
                        return compiled(*arguments, **options)
                except (torch._dynamo.exc.TorchDynamoException, NotImplementedError) as error:
                    fails = True
                    self._note(
                        f"torch.compile left {getattr(plain, '__name__', type(plain).__name__)} as it is, so its "
                        f"Inductor kernels are not seen: {_first_line(error)}"
                    )
            return plain(*arguments, **options)

        return call

    def _prepare(self) -> None:
        """Change Inductor at the first use: to import it takes seconds."""
        if self._is_prepared:
            return
        self._is_prepared = True
        import torch._functorch.config
        import torch._inductor.config
        from torch._inductor.output_code import CompiledFxGraph

        self._changes.enter_context(torch._inductor.config.patch(_NOT_HERE))
        # Compile a backward with its forward: later, in autograd, the tracker's mode is on.
        functorch: Any = torch._functorch.config
        self._changes.enter_context(functorch.patch("force_non_lazy_backward_lowering", True))
        stock: Callable[..., Any] = CompiledFxGraph.__call__

        def run(graph: Any, inputs: Sequence[Any]) -> Any:
            with self._tensors:
                return stock(graph, inputs)

        self._changes.enter_context(patch.object(CompiledFxGraph, "__call__", run))
        if self._moving:
            _guard_cuda()


class _Moving:
    """Traces a program on the CPU, where its tensors are, and moves the traced graph to `cuda` before Inductor sees it.

    PyTorch's autograd cannot trace tensors of a GPU that is absent.
    """

    def __init__(self) -> None:
        self._is_moved = False

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Let tensors say `cuda` when the traced program asks, but make those that it creates on the CPU."""
        from torch._dynamo.variables.tensor import TensorVariable
        from torch._subclasses import fake_tensor
        from torch._subclasses.fake_tensor import FakeTensorMode

        dispatch: Callable[..., Any] = FakeTensorMode.__torch_dispatch__
        specialize: Callable[..., dict[str, Any]] = TensorVariable.specialize

        def dispatched(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if kwargs and not self._is_moved and _is_cuda(kwargs.get("device")):
                kwargs = {**kwargs, "device": HOST}
            return dispatch(mode, func, types, args, kwargs)

        def specialized(value: torch.Tensor) -> dict[str, Any]:
            return {**specialize(value), "device": GPU}

        with (
            patch.object(fake_tensor, "init_gpu_context", lambda *unused: None),
            patch.object(FakeTensorMode, "avoid_device_init", True),
            patch.object(FakeTensorMode, "__torch_dispatch__", dispatched),
            patch.object(TensorVariable, "specialize", staticmethod(specialized)),
        ):
            yield

    @contextmanager
    def to_gpu(self, graph: Any, inputs: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Move a graph and its example inputs to `cuda`."""
        from torch._guards import detect_fake_mode
        from torch.fx.node import map_aggregate
        from torch.fx.passes.fake_tensor_prop import FakeTensorProp

        def moved(value: Any) -> Any:
            return GPU if isinstance(value, torch.device) else value

        for node in graph.graph.nodes:
            node.args, node.kwargs = map_aggregate(node.args, moved), map_aggregate(node.kwargs, moved)
        graph.recompile()
        mode: Any = detect_fake_mode(inputs)
        self._is_moved = True
        try:
            with mode:
                example = [_on_gpu(one) if isinstance(one, torch.Tensor) else one for one in inputs]
            FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*example)
            yield example
        finally:
            self._is_moved = False


def _guard_cuda() -> None:
    """Give a PyTorch without CUDA the device guard of the CPU, which does nothing: indexing a traced tensor needs one.

    PyTorch sets such a guard itself (`_ensureCUDADeviceGuardSet`), but only where it was built with CUDA.
    """
    with suppress(OSError, ValueError):  # another system, or a release without this table
        library = ctypes.CDLL(str(next(Path(torch.__path__[0], "lib").glob("libc10.*"), "")))
        guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")  # CPU, CUDA
        guards[1] = guards[1] or guards[0]


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=GPU)


def _first_line(error: BaseException) -> str:
    error = getattr(error, "inner_exception", error)  # the cause of a BackendCompilerFailed
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


@contextmanager
def _without_modes() -> Iterator[None]:
    """Take every mode off, so that PyTorch's tracer sees the program's calls and not the tracker's."""
    overrides: Any = torch.overrides  # these functions have no types
    modes = [overrides._pop_mode() for _ in overrides._get_current_function_mode_stack()]
    try:
        yield
    finally:
        for mode in reversed(modes):
            overrides._push_mode(mode)


def _launch_plainly(module: ModuleType, changes: ExitStack) -> None:
    """Launch a kernel of Inductor as `kernel[grid](…)`, with its first configuration."""

    def run(tuner: Any, *arguments: Any, stream: Any = None, benchmark_run: bool = False, **options: Any) -> Any:
        config = tuner.configs[0]
        plain, grid = tuner._interpret_args_grid(arguments, config)
        chosen = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        # A kernel of the program's own has its constants here, and its call passes the other arguments.
        constants = {**tuner.triton_meta.get("constants", {}), **config.kwargs}
        kernel, is_tuned = _users_kernel(tuner.fn)
        if is_tuned:  # as Triton's autotuner launches it
            chosen = {name: value for name, value in config.all_kwargs().items() if name not in config.kwargs}
        elif kernel is not tuner.fn:  # Inductor names defaults that the program's own launches leave out
            chosen = {name: value for name, value in chosen.items() if value != getattr(triton.Config({}), name)}
        names = [name for name in kernel.arg_names if name not in constants]
        if len(names) != len(plain):
            return kernel[grid](*plain, **options, **config.kwargs, **chosen)
        return kernel[grid](**dict(zip(names, plain, strict=True)), **options, **constants, **chosen)

    changes.enter_context(patch.object(module.CachingAutotuner, "run", run))


def _users_kernel(copied: Any) -> tuple[Any, bool]:
    """Return the program's own kernel that Inductor copied, or the kernel itself. The flag: is it autotuned?

    The report of the program's own names the program's file and lines, and counts launches outside `torch.compile` too.
    """
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    for kernel in kernel_side_table.id_to_kernel.values():
        own: Any = kernel
        while not hasattr(own, "src") and hasattr(own, "fn"):
            own = own.fn  # of an autotuner
        if getattr(own, "src", None) == copied.src and own.arg_names == copied.arg_names:
            return own, own is not kernel
    return copied, False


def _load_in_place(module: ModuleType, changes: ExitStack) -> None:
    """Load a kernel of Inductor from its source, without a compilation."""

    def load(compiler: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
        from torch._inductor.codecache import PyCodeCache

        return getattr(PyCodeCache.load(source_code), kernel_name)

    changes.enter_context(patch.object(module.AsyncCompile, "triton", load))


def _keep_driver(module: ModuleType, changes: ExitStack) -> None:
    """Keep the stand-in for Triton's driver, which generated code sets."""
    changes.enter_context(patch.object(module, "set_driver_to_gpu", lambda: None))


def _name_stand_ins(module: ModuleType, changes: ExitStack) -> None:
    """Let PyTorch's table of CUDA functions name the stand-ins, also where it was made before them."""
    for name, function in list(vars(module.CudaInterface).items()):
        if isinstance(function, staticmethod) and hasattr(torch.cuda, name):
            stand_in = staticmethod(getattr(torch.cuda, name))
            changes.enter_context(patch.object(module.CudaInterface, name, stand_in))


def _cuda_of_inductor() -> Iterator[tuple[Any, str, Any]]:
    """Yield the functions of CUDA that generated code calls, for a machine without a GPU."""
    import torch._C._dynamo.guards as guards

    def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    yield guards, "_empty_strided_cuda", empty
    yield torch._C, "_cuda_getCurrentRawStream", lambda index: 0
    yield torch.cuda, "_DeviceGuard", lambda index: nullcontext()
    for name in ("_exchange_device", "_maybe_exchange_device"):
        yield torch.cuda, name, lambda index: 0


@contextmanager
def _after_import(name: str, action: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call `action` with a module once it is imported."""
    if name in sys.modules:
        action(sys.modules[name])
        yield
        return
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as Python would, and acts after it ran."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        stock: Callable[[ModuleType], None] = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            stock(module)
            self._action(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
