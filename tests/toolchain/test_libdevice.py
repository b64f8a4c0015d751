"""Every function of libdevice computes in the interpreter, with the type that the compiler gives its result."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

from tilesmith.toolchain.interpreter import KernelError, interpret
from tilesmith.toolchain.interpreter.libdevice.functions import FUNCTIONS

HEAD = """
import triton, triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

@triton.jit
def kernel({names}, out_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    out = {module}.{name}({loads})
    tl.static_assert(out.dtype.primitive_bitwidth > 0)
    tl.store(out_ptr + offsets, out)
"""


def call(folder: Path, name: str, *values: list[Any], dtype: torch.dtype, out: torch.dtype) -> list[Any]:
    """Return what a function of libdevice gives for each element."""
    names = [f"x{place}_ptr" for place in range(len(values))]
    loads = ", ".join(f"tl.load({one} + offsets)" for one in names)
    module = "libdevice" if hasattr(libdevice, name) else "cuda_libdevice"
    file = folder / f"{name}_kernel.py"
    file.write_text(HEAD.format(names=", ".join(names), module=module, name=name, loads=loads))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    real = dtype.is_floating_point
    tensors = [torch.tensor(one, dtype=torch.int32 if real and isinstance(one[0], int) else dtype) for one in values]
    result = torch.zeros(len(values[0]), dtype=out)
    interpret(made.kernel, (1,), {**dict(zip(names, tensors, strict=True)), "out_ptr": result, "SIZE": len(values[0])})
    return result.tolist()


def test_every_function_of_libdevice_is_known() -> None:
    members = {**vars(libdevice), **vars(cuda_libdevice)}
    assert {name for name, one in members.items() if isfunction(one) and not name.startswith("_")} <= {*FUNCTIONS}


REAL: list[tuple[str, list[list[float]], Callable[..., float]]] = [
    ("round", [[0.5, 1.5, -2.5, 0.49999997]], lambda x: {0.5: 1.0, 1.5: 2.0, -2.5: -3.0}.get(x, 0.0)),
    ("rint", [[0.5, 1.5, -2.5, 2.2]], lambda x: float(round(x))),
    ("cbrt", [[8.0, -27.0, 2.0, 0.1]], lambda x: math.copysign(abs(x) ** (1 / 3), x)),
    ("tgamma", [[0.5, 3.0, 5.0, -0.5]], math.gamma),
    ("exp10", [[0.0, 1.0, -2.0, 0.3]], lambda x: 10.0**x),
    ("fma", [[1.5, 2.0], [2.0, 3.0], [0.25, -1.0]], lambda x, y, z: x * y + z),
    ("fdim", [[3.0, 1.0], [1.0, 3.0]], lambda x, y: max(x - y, 0.0)),
    ("remainder", [[5.5, -5.5], [2.0, 2.0]], math.remainder),
    ("normcdf", [[0.0, 1.0, -2.0, 0.5]], lambda x: 0.5 * math.erfc(-x / math.sqrt(2))),
    ("erfcinv", [[0.5, 1.0, 1e-3, 1.7]], lambda y: torch.erfinv(torch.tensor(1 - y, dtype=torch.float64)).item()),
    ("norm3d", [[1.0, 2.0], [2.0, 3.0], [2.0, 6.0]], lambda x, y, z: math.sqrt(x * x + y * y + z * z)),
    ("sinpi", [[0.5, 1.0, 1.25, -0.5]], lambda x: math.sin(math.pi * x)),
    ("logb", [[8.0, 0.3, 1.0, 5.0]], lambda x: float(math.frexp(x)[1] - 1)),
    ("j0", [[0.0, 1.0, 5.0, 2.4]], lambda x: torch.special.bessel_j0(torch.tensor(x, dtype=torch.float64)).item()),
    ("rcp_rn", [[3.0, 7.0]], lambda x: 1 / x),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "expected"), REAL, ids=[one[0] for one in REAL])
def test_real_functions_match_the_definition(
    tmp_path: Path, name: str, values: list[list[float]], expected: Callable[..., float]
) -> None:
    found = call(tmp_path, name, *values, dtype=torch.float32, out=torch.float32)
    wanted = [expected(*(float(torch.tensor(one)) for one in ones)) for ones in zip(*values, strict=True)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=2e-6, atol=2e-6)


WHOLE: list[tuple[str, list[list[Any]], torch.dtype, list[int]]] = [
    ("popc", [[0, 255, -1, 5]], torch.int32, [0, 8, 32, 2]),
    ("clz", [[0, 1, -1, 255]], torch.int32, [32, 31, 0, 24]),
    ("ffs", [[0, 1, 8, -2]], torch.int32, [0, 1, 4, 2]),
    ("brev", [[1, 2]], torch.int32, [-(2**31), 2**30]),
    ("mulhi", [[2**30, -(2**30)], [8, 8]], torch.int32, [2, -2]),
    ("byte_perm", [[0x03020100], [0x07060504], [0x7531]], torch.int32, [0x07050301]),
    ("hadd", [[2**31 - 1, -3], [1, 0]], torch.int32, [2**30, -2]),
    ("float2int_rn", [[0.5, 1.5, -2.5, 3e9]], torch.float32, [0, 2, -2, 2**31 - 1]),
    ("float2int_rd", [[0.5, -0.5, math.nan, -3e9]], torch.float32, [0, -1, 0, -(2**31)]),
    ("llrint", [[0.5, 2.5, -1.5, 1e6]], torch.float32, [0, 2, -2, 1000000]),
    ("ilogb", [[8.0, 0.3]], torch.float32, [3, -2]),
    ("float_as_int", [[1.0, -0.0]], torch.float32, [0x3F800000, -(2**31)]),
    ("isnan", [[1.0, math.nan]], torch.float32, [0, 1]),
    ("signbit", [[1.0, -1.0]], torch.float32, [0, 1]),
]


@pytest.mark.parametrize(("name", "values", "dtype", "expected"), WHOLE, ids=[one[0] for one in WHOLE])
def test_functions_of_bits_and_conversions_match_the_definition(
    tmp_path: Path, name: str, values: list[list[Any]], dtype: torch.dtype, expected: list[int]
) -> None:
    found = call(tmp_path, name, *values, dtype=dtype, out=torch.int64)
    assert [abs(one) if name == "signbit" else one for one in found] == expected


@pytest.mark.parametrize(("mode", "above"), [("rn", False), ("rd", False), ("ru", True), ("rz", False)])
def test_rounding_modes_round_once_in_their_direction(tmp_path: Path, mode: str, above: bool) -> None:
    (found,) = call(tmp_path, f"add_{mode}", [1.0], [2.0**-30], dtype=torch.float32, out=torch.float32)
    assert found == (1.0 + 2.0**-23 if above else 1.0)


def test_a_function_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FUNCTIONS, "cbrt")
    with pytest.raises(KernelError, match=r"does not know libdevice\.cbrt"):
        call(tmp_path, "cbrt", [1.0], dtype=torch.float32, out=torch.float32)
