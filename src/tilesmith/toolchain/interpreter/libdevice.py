"""The functions of `triton.language.extra` for the interpreter: libdevice, and `tl.extra.cuda`.

Programs run one after another, so waiting for an earlier grid takes no time, and a clock counts its own reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import cuda, libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.patches import handle_of, values_of
from tilesmith.toolchain.interpreter.values.undefined import pass_on

_NANOSECONDS = 1000  # between two reads of the clock
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh"),
            *("erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmax", "fmin", "fmod", "hypot", "lgamma"),
            *(
                "log",
                "log10",
                "log1p",
                "log2",
                "pow",
                "rsqrt",
                "signbit",
                "sin",
                "sinh",
                "sqrt",
                "tan",
                "tanh",
                "trunc",
            ),
        )
    },
    "fast_cosf": torch.cos,
    "fast_dividef": torch.div,
    "fast_expf": torch.exp,
    "fast_log2f": torch.log2,
    "fast_logf": torch.log,
    "fast_powf": torch.pow,
    "fast_sinf": torch.sin,
    "fast_tanf": torch.tan,
    "fast_tanhf": torch.tanh,
    "finitef": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "nearbyint": torch.round,
    "rint": torch.round,
    "div_rn": torch.div,
    "sqrt_rn": torch.sqrt,
}


def functions(semantic: TritonSemantic) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield each module with such a function, the function's name, and the replacement."""
    for module in (libdevice, cuda_libdevice):
        for name, function in _FUNCTIONS.items():
            if hasattr(module, name):
                yield module, name, _on_tensors(function, semantic)
    yield from _of_cuda(semantic)


def _of_cuda(semantic: TritonSemantic) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    clock = count(_NANOSECONDS, _NANOSECONDS)
    replacements: dict[str, Callable[..., Any]] = {
        "gdc_wait": lambda **unused: None,
        "gdc_launch_dependents": lambda **unused: None,
        "globaltimer": lambda **unused: _scalar(next(clock), tl.int64, np.int64),
        "smid": lambda **unused: _scalar(semantic.builder.grid_idx[0], tl.int32, np.int32),
    }
    for module in (cuda, *(getattr(cuda, name) for name in ("gdc", "utils") if hasattr(cuda, name))):
        for name, function in replacements.items():
            if hasattr(module, name):
                yield module, name, function


def _scalar(value: int, scalar: Any, dtype: Any) -> Any:
    return tl.tensor(TensorHandle(np.array([value], dtype=dtype), scalar), scalar)


def _on_tensors(function: Callable[..., torch.Tensor], semantic: TritonSemantic) -> Callable[..., Any]:
    def call(*arguments: Any, **unused: Any) -> Any:
        tensors = [semantic.to_tensor(argument) for argument in arguments]
        # Scalars take the dtype of the block, as when Triton chooses among libdevice's variants.
        widest = max(tensors, key=lambda tensor: len(tensor.shape))

        def computed(*handles: Any) -> Any:
            values = function(*(torch.from_numpy(values_of(handle).copy()) for handle in handles)).numpy()
            scalar = tl.int32 if values.dtype == bool else max(handles, key=lambda one: one.data.ndim).dtype.scalar
            return handle_of(values, scalar)

        def together(rows: Sequence[Any]) -> list[Any]:
            own = [TensorHandle(row, tensor.dtype.scalar) for row, tensor in zip(rows, tensors, strict=True)]
            return [computed(*own).data]

        recorder = semantic.builder.recorder
        handles = [tensor.handle for tensor in tensors]
        handle = computed(*handles) if recorder is None else recorder.call("extern_elementwise", computed, *handles)
        result, scalar = handle.data, handle.dtype.scalar
        if semantic.builder.path is not None:
            semantic.builder.path.lose([tensor.handle for tensor in tensors], [handle], "libdevice", together)
        pass_on(semantic.builder, [tensor.handle for tensor in tensors], handle)
        return tl.tensor(handle, tl.block_type(scalar, list(result.shape)) if widest.shape else scalar)

    return call
