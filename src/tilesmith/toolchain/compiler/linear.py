"""Layouts that no formula of ours covers, such as those of matrix units: Triton itself turns them into linear ones.

A linear layout gives the element of a register, lane and warp by xor: each bit of their numbers adds its basis.
"""

from __future__ import annotations

import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bases = tuple[tuple[int, ...], ...]

_MODULE = """{aliases}
module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = {warps} : i32,
  "ttg.threads-per-warp" = {lanes} : i32}} {{
  tt.func @layout(%tensor: tensor<{shape}xi8, {name}>) {{
    tt.return
  }}
}}
"""


@dataclass(frozen=True)
class Linear:
    """For each bit of a register's, a lane's and a warp's number, what it adds to the place of the element."""

    registers: Bases
    lanes: Bases
    warps: Bases


@cache
def as_linear(shape: tuple[int, ...], name: str, aliases: tuple[tuple[str, str], ...]) -> Linear | None:
    """The layout that a TTGIR text calls by this name, for a tensor of this shape; None where Triton cannot say."""
    text = " ".join((name, *(value for _, value in aliases)))
    lanes = 64 if "amd_mfma" in text else 32
    warps = max((_product(numbers) for numbers in re.findall(r"warpsPerCTA = \[([\d, ]+)\]", text)), default=4)
    module = _MODULE.format(
        aliases="\n".join(f"{alias} = {value}" for alias, value in aliases),
        warps=warps, lanes=lanes, shape="x".join(map(str, shape)), name=name,
    )  # fmt: skip
    return _in_a_copy_of_this_process(lambda: _asked(module, shape))


def linear_owners(
    shape: tuple[int, ...], layout: Linear
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Warp, lane and register of each element; of several owners, the first."""
    places = _places(layout.warps)[:, None, None] ^ _places(layout.lanes)[None, :, None]
    places = places ^ _places(layout.registers)[None, None, :]
    weights = np.cumprod((1, *shape[:0:-1]))[::-1]
    flat = (places * weights).sum(axis=-1)
    owner = np.zeros(int(np.prod(shape)), dtype=np.int64)
    count = np.arange(flat.size).reshape(flat.shape)
    owner[flat.reshape(-1)[::-1]] = count.reshape(-1)[::-1]  # the first of several is written last
    warp, lane, register = np.unravel_index(owner, flat.shape)
    return warp.reshape(shape), lane.reshape(shape), register.reshape(shape)


def _places(bases: Bases) -> Any:
    """The place of each number: the xor of the bases of its bits."""
    numbers = np.arange(1 << len(bases))
    places = np.zeros((len(numbers), len(bases[0]) if bases else 1), dtype=np.int64)
    for bit, basis in enumerate(bases):
        places ^= ((numbers >> bit) & 1)[:, None] * np.array(basis, dtype=np.int64)
    return places


def _in_a_copy_of_this_process(question: Callable[[], Linear]) -> Linear | None:
    """The answer, or None where there is none. Triton 3.9 cannot give one without complaining, when the process that
    asked ends, about what it has leaked; a copy can end without a word."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are not copied, and none is needed
        process = os.fork()
    if process == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(question(), pipe)
        finally:  # also for a layout of a release to come, or one that is no distributed layout
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(process, 0)
    return pickle.loads(answer) if answer else None


def _asked(module_text: str, shape: tuple[int, ...]) -> Linear:
    # Only such layouts need this part of Triton, which is slow to load.
    from triton._C.libtriton import amd, gluon_ir, ir, nvidia

    context = ir.context()
    for dialects in (ir, nvidia, amd):
        dialects.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(module_text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    builder = gluon_ir.GluonOpBuilder(context)
    layout = builder.get_gluon_layout_from_tensor(module.get_function("layout").args(0))
    found = builder.to_linear_layout(layout._to_ir(builder), list(shape))
    return Linear(_bases(found.reg_bases), _bases(found.lane_bases), _bases(found.warp_bases))


def _bases(bases: list[list[int]]) -> Bases:
    return tuple(tuple(basis) for basis in bases)


def _product(numbers: str) -> int:
    return int(np.prod([int(number) for number in numbers.split(",")]))
