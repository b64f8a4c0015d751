"""Calls of functions of `triton.language.extra` on blocks: libdevice, and `tl.extra.cuda`.

Programs run one after another, so waiting for an earlier grid takes no time, and a clock counts its own reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from inspect import isfunction, signature
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import triton.language as tl
from triton.language.extra import cuda, libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.extra.hip import libdevice as hip_libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.libdevice.functions import FUNCTIONS
from tilesmith.toolchain.interpreter.numerics import handle_of, values_of
from tilesmith.toolchain.interpreter.ptx import UnknownOperation
from tilesmith.toolchain.interpreter.values.undefined import pass_on

_NANOSECONDS = 1000  # between two reads of the clock
_ORIGINALS = {name: member for name, member in vars(cuda_libdevice).items() if isfunction(member)}  # never replaced


def functions(semantic: TritonSemantic) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield each module with such a function, the function's name, and the replacement."""
    for module in (libdevice, cuda_libdevice, hip_libdevice):
        for name, member in vars(module).items():
            if isfunction(member) and not name.startswith("_"):
                yield module, name, _on_tensors(name, semantic)
    yield from _of_cuda(semantic)


@cache
def _types(name: str) -> dict[tuple[str, ...], str]:
    """Return the result's type for the types of the arguments, from Triton's own table of libdevice."""
    function = _ORIGINALS.get(name)
    found: dict[tuple[str, ...], str] = {}
    converted: list[str] = []

    def noted(library: str, path: str, arguments: Any, variants: dict[Any, tuple[str, Any]], **unused: Any) -> Any:
        found.update({tuple(map(str, types)): str(symbol[1]) for types, symbol in variants.items()})
        return SimpleNamespace(to=lambda dtype, **unused: converted.append(str(dtype)))

    if function is not None:
        arguments = [None for one in signature(function).parameters if one != "_semantic"]
        with patch.object(tl.core, "extern_elementwise", noted):
            function(*arguments, _semantic=object())
    return {types: converted[-1] if converted else result for types, result in found.items()}


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


def _on_tensors(name: str, semantic: TritonSemantic) -> Callable[..., Any]:
    def call(*arguments: Any, **unused: Any) -> Any:
        if name not in FUNCTIONS:
            raise UnknownOperation(f"libdevice.{name}")
        function = FUNCTIONS[name]
        tensors = [semantic.to_tensor(argument) for argument in arguments]
        # Scalars take the dtype of the block, as when Triton chooses among libdevice's variants.
        widest = max(tensors, key=lambda tensor: len(tensor.shape))

        def computed(*handles: Any) -> Any:
            with np.errstate(all="ignore"):
                values = np.asarray(function(*(values_of(handle).copy() for handle in handles)))
            own = max(handles, key=lambda one: one.data.ndim).dtype.scalar
            known = _types(name).get(tuple(str(handle.dtype.scalar) for handle in handles))
            return handle_of(values, tl.dtype(known) if known else tl.int32 if values.dtype == bool else own)

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
