"""Stand-ins for benchmarks, profilers and cuBLAS: a script that measures itself runs to its end without a GPU.

A benchmark calls its function once and returns NaN. `is_benchmarking` lets an observer skip the results of that call.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from math import nan
from typing import Any
from unittest.mock import patch

import torch
import triton.testing

_BENCHMARKS = ("do_bench", "do_bench_cudagraph", "do_bench_proton", "do_bench_cudagraph_proton")
_E2M1 = torch.tensor([sign * size for sign in (1, -1) for size in (0.0, 0.5, 1, 1.5, 2, 3, 4, 6)])
_E2M1_PAIRS = torch.stack([_E2M1[torch.arange(256) % 16], _E2M1[torch.arange(256) // 16]], -1)  # of each byte
_LARGE_PRODUCT = 1 << 35  # flops: a second of a core; two digests of its operands take a tenth of that
_last_product: dict[Any, torch.Tensor] = {}
_running: list[str] = []


def is_benchmarking() -> bool:
    """Whether a benchmark runs now: nobody reads the results of its launches."""
    return bool(_running)


@contextmanager
def benchmarking() -> Iterator[None]:
    """Mark what runs inside the context as a benchmark."""
    _running.append("benchmark")
    try:
        yield
    finally:
        if "benchmark" in _running:
            _running.remove("benchmark")


def run_once(
    function: Callable[[], Any], *unused: Any, quantiles: Sequence[float] | None = None, **options: Any
) -> Any:
    """Replace a benchmark: call once, and return no time."""
    with benchmarking():
        function()
    if options.get("return_mode") == "all":
        return [nan]
    return nan if quantiles is None else [nan] * len(quantiles)


def _run_smallest(mark: Any, *unused: Any, return_df: bool = False, **options: Any) -> Any:
    """Replace `perf_report`'s run: run each line at its first size, which launches every kernel."""
    for name in ("show_plots", "print_data", "save_path", "diff_col", "save_precision"):
        options.pop(name, None)
    benchmarks = [mark.benchmarks] if isinstance(mark.benchmarks, triton.testing.Benchmark) else mark.benchmarks
    for benchmark in benchmarks:
        first = next(iter(benchmark.x_vals))
        sizes = first if isinstance(first, list | tuple) else [first for _ in benchmark.x_names]
        for line in benchmark.line_vals:
            with benchmarking():  # a report also computes what it only prepares for the function that it times
                mark.fn(
                    **dict(zip(benchmark.x_names, sizes, strict=True)),
                    **{benchmark.line_arg: line}, **benchmark.args, **options,
                )  # fmt: skip


class CublasLt:
    """Triton's binding of cuBLAS, computed by PyTorch on the host. Operands are row-major, `b` is transposed.

    A torch function mode sees each product as one call with the keyword `out`.
    """

    def __init__(self, workspace: Any) -> None:
        pass

    def matmul(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Write a · bᵀ to c."""
        _write(_plain_product, a, b, out=c)

    def gemm(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, alpha: float, beta: float
    ) -> None:
        """Write alpha · a · bᵀ + beta · c to d."""
        _write(lambda a, b, c: alpha * _plain_product(a, b) + beta * c.float(), a, b, c, out=d)

    def block_scaled_matmul_nvfp4(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
    ) -> None:
        """Write a · bᵀ to c. A byte has two e2m1 numbers, and 16 of these share an e4m3 scale."""
        _write(_nvfp4_product, a, b, a_scale, b_scale, out=c)

    def block_scaled_matmul_mxfp8(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
    ) -> None:
        """Write a · bᵀ to c. 32 numbers share an e8m0 scale: an exponent of 2."""
        _write(_mxfp8_product, a, b, a_scale, b_scale, out=c)


def _write(product: Callable[..., torch.Tensor], *operands: torch.Tensor, out: torch.Tensor) -> None:
    def cublas_product(*operands: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(product(*operands))

    if torch.overrides.has_torch_function(operands):
        torch.overrides.handle_torch_function(cublas_product, operands, *operands, out=out)
    else:
        cublas_product(*operands, out=out)


def single_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return a product of float32 matrices, to be copied. The last large one is kept.

    A script that compares implementations computes the same product several times.
    """
    if left.dim() != 2 or 2 * left.numel() * right.shape[-1] < _LARGE_PRODUCT:
        return left @ right
    key = left.shape, right.shape, _digest(left), _digest(right)
    if key not in _last_product:
        _last_product.clear()
        _last_product[key] = left @ right
    return _last_product[key]


def _digest(matrix: torch.Tensor) -> bytes:
    return hashlib.sha256(matrix.contiguous().numpy().data).digest()


def _plain_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return single_product(a.float(), b.float().T)


def _nvfp4_product(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    left, right = (
        _scaled(_E2M1_PAIRS[one.int()].flatten(-2), scale.float(), 16) for one, scale in ((a, a_scale), (b, b_scale))
    )
    return single_product(left, right.T)


def _mxfp8_product(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    left, right = (
        _scaled(one.float(), torch.exp2(scale.view(torch.uint8).float() - 127), 32)
        for one, scale in ((a, a_scale), (b, b_scale))
    )
    return single_product(left, right.T)


def _scaled(values: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """Return a matrix times its scales, which have cuBLAS's order: blocks of 128 rows and 4 groups."""
    rows = len(values)
    ordered = scales.reshape(rows // 128, -1, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(rows, -1, 1)
    return (values.reshape(rows, -1, group) * ordered).reshape(rows, -1)


@contextmanager
def benchmarks_cut_short() -> Iterator[None]:
    """Replace Triton's benchmarks, its profiler and its cuBLAS, inside the context."""
    with ExitStack() as changes:
        for name in _BENCHMARKS:
            if hasattr(triton.testing, name):
                changes.enter_context(patch.object(triton.testing, name, run_once))
        changes.enter_context(patch.object(triton.testing.Mark, "run", _run_smallest))
        changes.enter_context(_profiler_silenced())
        changes.callback(_running.clear)
        changes.callback(_last_product.clear)
        from triton._C import libtriton

        cublas = getattr(getattr(libtriton, "nvidia", None), "cublas", None)
        if cublas is not None:
            changes.enter_context(patch.object(cublas, "CublasLt", CublasLt))
        yield


@contextmanager
def _profiler_silenced() -> Iterator[None]:
    """Put stand-ins in the place of Triton's profiler, which needs a driver, and of its viewer."""
    profiler = _Profiler()
    stand_ins: dict[str, Any] = {"triton.profiler": profiler, "triton.profiler.viewer": profiler.viewer}
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        with patch.object(triton, "profiler", profiler, create=True):
            yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class _Viewer:
    """`triton.profiler.viewer` without a profile."""

    def parse(self, *unused: Any, **options: Any) -> tuple[None, list[str]]:
        return None, []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *unused, **options: None


class _Profiler:
    """`triton.profiler` that measures nothing. Launches between `activate` and `deactivate` are benchmarks."""

    __path__: tuple[str, ...] = ()
    __name__ = "triton.profiler"
    __spec__ = None
    viewer = _Viewer()

    def start(self, *unused: Any, **options: Any) -> int:
        return 0

    def activate(self, *unused: Any, **options: Any) -> None:
        _running.append("profiler")

    def deactivate(self, *unused: Any, **options: Any) -> None:
        if "profiler" in _running:
            _running.remove("profiler")

    finalize = deactivate

    def profile(self, function: Any = None, **options: Any) -> Any:
        return function if function is not None else lambda wrapped: wrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _scope  # scope, cpu_timed_scope, state, …


class _scope(nullcontext[None]):  # scripts use it as a context and as a decorator
    def __init__(self, *unused: Any, **options: Any) -> None:
        super().__init__()

    def __call__(self, function: Any) -> Any:
        return function
