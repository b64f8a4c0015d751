"""Gluon, Triton's language for one GPU architecture: names that differ between releases, and TMA descriptors.

A Gluon kernel chooses warp roles and layouts itself. `interpreter/gluon/` runs Gluon kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

# TMA loads and stores: Triton 3.6 to 3.8 have the longer names.
fetch = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
put = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


@gl._core.builtin  # type: ignore[untyped-decorator]  # Triton ships it untyped
def _tma_add(tensor_desc: Any, coord: Any, src: Any, _semantic: Any = None) -> None:
    corner = _semantic._convert_to_ir_values(coord, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, tensor_desc.handle, corner, src.handle)


# TMA sums: adds a tile in shared memory to global memory. Triton 3.6 and 3.7 have the operation, but no name for it.
add = getattr(tma, "async_atomic_add", _tma_add)

# Synchronises all threads that run the same function. Triton 3.6 calls it thread_barrier, later releases barrier.
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier

# Shared memory seen with another dtype and shape: Triton 3.6 to 3.8 have the name with an underscore.
reinterpreted = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret

GLUON_DESCRIPTOR = GluonDescriptor
DESCRIPTORS = (TensorDescriptor, GluonDescriptor)
"""Classes of TMA descriptors: Triton's and Gluon's."""


def described(base: Any, shape: Sequence[int], strides: Sequence[int], block: Sequence[int]) -> GluonDescriptor:
    """Return a Gluon kernel's TMA descriptor, with the widest shared-memory swizzle that its rows allow."""
    dtype = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}[base.dtype]
    layout = gl.NVMMASharedLayout.get_default_for(list(block), dtype)
    return GluonDescriptor(base, list(shape), list(strides), list(block), layout)
