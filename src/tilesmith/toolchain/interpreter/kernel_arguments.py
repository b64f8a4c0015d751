"""A launch's arguments as the kernel sees them: pointers, scalars and descriptors of the interpreter."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import mangle_type

from tilesmith.toolchain.gluon import DESCRIPTORS, GLUON_DESCRIPTOR
from tilesmith.toolchain.interpreter.gluon.language import GluonLanguage
from tilesmith.toolchain.interpreter.language import Language
from tilesmith.toolchain.interpreter.numerics import numpy_dtype
from tilesmith.toolchain.interpreter.patches import pointer_to


@cache
def the_language() -> Language:
    return Language()


@cache
def the_gluon_language() -> GluonLanguage:
    return GluonLanguage(the_language())


def values_in_kernel(kernel: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a launch as the kernel sees them."""
    return {
        parameter.name: _constant(arguments[parameter.name])
        if parameter.is_constexpr
        else _device_value(parameter.name, arguments[parameter.name], parameter.annotation_type)
        for parameter in kernel.params
    }


def _constant(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _device_value(name: str, value: Any, annotation: str = "") -> Any:
    """Return an argument as the kernel sees it."""
    if isinstance(value, tuple):
        elements = [_device_value(f"{name}[{index}]", element) for index, element in enumerate(value)]
        return type(value)(*elements) if hasattr(value, "_fields") else tuple(elements)
    if isinstance(value, DESCRIPTORS):
        return _device_descriptor(name, value)
    if isinstance(value, tl.constexpr):
        return value.value
    if hasattr(value, "data_ptr"):
        return pointer_to(value.data_ptr(), tl.str_to_ty(mangle_type(value), None).element_ty, name)
    if isinstance(value, int | float):
        scalar = tl.str_to_ty(annotation or mangle_type(value), None)
        return tl.tensor(TensorHandle(np.array([value], dtype=numpy_dtype(scalar)), scalar), scalar)
    return value


def _device_descriptor(name: str, descriptor: Any) -> Any:
    base = _device_value(name, descriptor.base)
    shape = [_device_value(name, length) for length in descriptor.shape]
    strides = [_device_value(name, stride) for stride in descriptor.strides[:-1]]
    if isinstance(descriptor, GLUON_DESCRIPTOR):
        last = _device_value(name, 1)
        made = the_gluon_language().descriptor(
            base, shape, [*strides, last], descriptor.block_shape, descriptor.layout, descriptor.padding
        )
    else:
        block = [tl.constexpr(length) for length in descriptor.block_shape]
        made = the_language().semantic.make_tensor_descriptor(
            base=base,
            shape=shape,
            strides=[*strides, tl.constexpr(1)],
            block_shape=block,
            padding_option=descriptor.padding,
        )
    made.handle.round_f32_to_tf32 = getattr(descriptor, "round_f32_to_tf32", False)  # new in 3.9
    return made
