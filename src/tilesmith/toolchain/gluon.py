"""Gluon, Triton's language for what one generation of GPUs can do: what its releases call by different names.

A kernel in Gluon says itself which warps do what and where tiles lie; Triton's interpreter does not know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

# The copy engine, to shared memory and back: Triton 3.6 to 3.8 have the longer names.
fetch = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
put = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

# All threads that run the same function wait for each other: 3.6 says which threads, later releases only that.
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier

# The same shared memory as of another dtype and shape: Triton 3.6 to 3.8 have the name with an underscore.
reinterpreted = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret

DESCRIPTORS = (TensorDescriptor, GluonDescriptor)
"""What a kernel takes for a tensor that the copy engine walks: in Triton, and in Gluon."""


def described(base: Any, shape: Sequence[int], strides: Sequence[int], block: Sequence[int]) -> GluonDescriptor:
    """As a kernel in Gluon takes it: with tiles swizzled in shared memory as far as their rows are wide."""
    dtype = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}[base.dtype]
    layout = gl.NVMMASharedLayout.get_default_for(list(block), dtype)
    return GluonDescriptor(base, list(shape), list(strides), list(block), layout)
