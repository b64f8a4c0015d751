"""The CUDA driver, as far as the judge needs it: device code, the sizes of parameters, launches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

_COOPERATIVE, _CLUSTER, _EARLY = 2, 4, 6
_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS, _DYNAMIC_SHARED, _ANY_CLUSTER = 1, 3, 4, 8, 14
_USUAL_SHARED = 48 << 10
_USUAL_CLUSTER = 8
_INVALID_VALUE, _NOT_FOUND = 1, 500


class CudaError(RuntimeError):
    """The driver refused a call. The message begins with "CUDA", by which the judge knows errors of the GPU."""


class _Attribute(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class _Configuration(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


class Function:
    """One kernel. `sizes` are the bytes of each parameter."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self.sizes = _parameter_sizes(handle)

    def facts(self) -> dict[str, int]:
        """Return registers, and bytes of local and static shared memory."""
        kinds = {"registers": _REGISTERS, "local_bytes": _LOCAL_BYTES, "shared_bytes": _SHARED_BYTES}
        return {name: _attribute(self._handle, kind) for name, kind in kinds.items()}

    def launch(
        self, grid: Sequence[int], block: Sequence[int], shared: int, stream: int, parameters: Sequence[bytes], *,
        cluster: Sequence[int] = (1, 1, 1), cooperative: bool = False, early: bool = False,
    ) -> None:  # fmt: skip
        """Launch on a stream. Raises CudaError."""
        if shared > _USUAL_SHARED:
            _call("cuFuncSetAttribute", self._handle, _DYNAMIC_SHARED, shared)
        wide = cluster[0] * cluster[1] * cluster[2]
        if wide > _USUAL_CLUSTER:
            _call("cuFuncSetAttribute", self._handle, _ANY_CLUSTER, 1)
        attributes = (_Attribute * 3)()
        count = 0
        for kind, wanted, value in (
            (_CLUSTER, wide > 1, tuple(cluster)), (_COOPERATIVE, cooperative, (1,)), (_EARLY, early, (1,)),
        ):  # fmt: skip
            if wanted:
                attributes[count].kind = kind
                for number, part in enumerate(value):
                    attributes[count].value[number] = part
                count += 1
        configuration = _Configuration(
            (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared, stream, attributes, count
        )
        buffers = [ctypes.create_string_buffer(one, len(one)) for one in parameters]
        pointers = (ctypes.c_void_p * max(1, len(buffers)))(*(ctypes.addressof(one) for one in buffers))
        _call("cuLaunchKernelEx", ctypes.byref(configuration), self._handle, pointers, None)


class Images:
    """The device code in a folder: functions by their mangled names. Needs a current context."""

    def __init__(self, folder: Path) -> None:
        self._modules = [_loaded(one.read_bytes()) for one in sorted(folder.glob("*.cubin"))]
        self._functions: dict[str, Function | None] = {}

    def function(self, name: str) -> Function | None:
        """Return the kernel with this name; None where there is none."""
        if name not in self._functions:
            found = (_found(module, name) for module in self._modules)
            self._functions[name] = next((one for one in found if one is not None), None)
        return self._functions[name]


def address_range(address: int) -> tuple[int, int] | None:
    """Return the start and length of the allocation that holds an address; None where it is no device memory."""
    start, length = ctypes.c_uint64(), ctypes.c_size_t()
    status = _driver().cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(length), ctypes.c_uint64(address))
    return (start.value, length.value) if status == 0 else None


def _loaded(image: bytes) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), image)
    return module


def _found(module: ctypes.c_void_p, name: str) -> Function | None:
    handle = ctypes.c_void_p()
    status = _driver().cuModuleGetFunction(ctypes.byref(handle), module, name.encode())
    if status == _NOT_FOUND:
        return None
    _check("cuModuleGetFunction", status)
    return Function(handle)


def _parameter_sizes(handle: ctypes.c_void_p) -> list[int]:
    sizes: list[int] = []
    while True:
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        status = _driver().cuFuncGetParamInfo(
            handle, ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)
        )
        if status == _INVALID_VALUE:
            return sizes
        _check("cuFuncGetParamInfo", status)
        sizes.append(size.value)


def _attribute(handle: ctypes.c_void_p, kind: int) -> int:
    value = ctypes.c_int()
    _call("cuFuncGetAttribute", ctypes.byref(value), kind, handle)
    return value.value


def _call(name: str, *arguments: Any) -> None:
    _check(name, getattr(_driver(), name)(*arguments))


def _check(name: str, status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise CudaError(f"CUDA error {status} in {name}: {(text.value or b'').decode(errors='replace')}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
