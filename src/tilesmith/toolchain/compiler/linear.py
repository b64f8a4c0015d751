"""Linear layouts, for layouts that have no formula here, such as those of matrix units. Triton converts them.

A linear layout maps register, lane and warp to an element by xor: each bit of their numbers contributes its basis.
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
    """The basis of each bit of a register's, a lane's and a warp's number."""

    registers: Bases
    lanes: Bases
    warps: Bases


@cache
def as_linear(shape: tuple[int, ...], name: str, aliases: tuple[tuple[str, str], ...]) -> Linear | None:
    """Return the layout of this name in a TTGIR text for a tensor of this shape; None where Triton has no answer."""
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
    """Return warp, lane and register of each element; the first, where several hold it."""
    places = _places(layout.warps)[:, None, None] ^ _places(layout.lanes)[None, :, None]
    places = places ^ _places(layout.registers)[None, None, :]
    weights = np.cumprod((1, *shape[:0:-1]))[::-1]
    flat = (places * weights).sum(axis=-1)
    owner = np.zeros(int(np.prod(shape)), dtype=np.int64)
    count = np.arange(flat.size).reshape(flat.shape)
    owner[flat.reshape(-1)[::-1]] = count.reshape(-1)[::-1]  # the first of several owners is written last
    warp, lane, register = np.unravel_index(owner, flat.shape)
    return warp.reshape(shape), lane.reshape(shape), register.reshape(shape)


def _places(bases: Bases) -> Any:
    """Return the place of each number: the xor of the bases of its bits."""
    numbers = np.arange(1 << len(bases))
    places = np.zeros((len(numbers), len(bases[0]) if bases else 1), dtype=np.int64)
    for bit, basis in enumerate(bases):
        places ^= ((numbers >> bit) & 1)[:, None] * np.array(basis, dtype=np.int64)
    return places


def _in_a_copy_of_this_process(question: Callable[[], Linear]) -> Linear | None:
    """Return the answer of a forked process, or None where it fails.

    Triton 3.9 prints a message about leaked objects when a process that asked exits; the fork exits silently.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork copies no threads, and the question needs none
        process = os.fork()
    if process == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(question(), pipe)
        finally:  # also where the layout is unknown or not distributed
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(process, 0)
    return pickle.loads(answer) if answer else None


def _asked(module_text: str, shape: tuple[int, ...]) -> Linear:
    # Imported here because this part of Triton loads slowly.
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
