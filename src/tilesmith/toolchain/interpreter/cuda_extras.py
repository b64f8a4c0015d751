"""The functions of `triton.language.extra.cuda` for the interpreter.

Programs run one after another, so waiting for an earlier grid takes no time, and a clock counts its own reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl
from triton.language.extra import cuda
from triton.runtime.interpreter import TensorHandle

if TYPE_CHECKING:
    from tilesmith.toolchain.interpreter.language import Language

_NANOSECONDS = 1000  # between two reads of the clock


def functions(language: Language) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield each module with such a function, the function's name, and the replacement."""
    clock = count(_NANOSECONDS, _NANOSECONDS)
    replacements: dict[str, Callable[..., Any]] = {
        "gdc_wait": lambda **unused: None,
        "gdc_launch_dependents": lambda **unused: None,
        "globaltimer": lambda **unused: _scalar(next(clock), tl.int64, np.int64),
        "smid": lambda **unused: _scalar(language.builder.grid_idx[0], tl.int32, np.int32),
    }
    modules = [cuda, *(getattr(cuda, name) for name in ("gdc", "utils") if hasattr(cuda, name))]
    for module in modules:
        for name, function in replacements.items():
            if hasattr(module, name):
                yield module, name, function


def _scalar(value: int, scalar: Any, dtype: Any) -> Any:
    return tl.tensor(TensorHandle(np.array([value], dtype=dtype), scalar), scalar)
