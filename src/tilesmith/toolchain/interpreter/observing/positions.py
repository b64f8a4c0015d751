"""Positions in the user's source: the line of a kernel that performs an operation of the interpreter."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import triton

NOWHERE = ("<unknown>", 0)
_NOT_USERS = (Path(triton.__file__).parent, Path(np.__file__).parent, Path(__file__).parents[1])
_NOT_USER_CODE = tuple(f"{folder}{os.sep}" for folder in _NOT_USERS)


@cache
def is_user_code(file: str) -> bool:
    """Whether a file belongs to the user, not to Triton, NumPy or the interpreter."""
    return not file.startswith(_NOT_USER_CODE)


def kernel_position(frame: FrameType | None) -> tuple[str, int]:
    """Return file and line of the innermost frame in the user's source."""
    found = kernel_frame(frame)
    return (found.f_code.co_filename, found.f_lineno) if found else NOWHERE


def kernel_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def column_of(frame: FrameType | None) -> int:
    """Return the column of the call that a frame executes; 0 before Python 3.11."""
    if frame is None or not hasattr(frame.f_code, "co_positions"):
        return 0
    return _columns(frame.f_code)[frame.f_lasti // 2]


@lru_cache
def _columns(code: CodeType) -> list[int]:
    positions: Any = code
    return [column or 0 for _, _, column, _ in positions.co_positions()]
