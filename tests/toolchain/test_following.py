# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""Programs followed operation by operation, and launches handed over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from tilesmith.toolchain.interpreter import Launched, Observer, Operation, handing_over, interpret
from tilesmith.toolchain.interpreter.kernel_arguments import the_language
from tilesmith.toolchain.interpreter.observing.operations import _handles


@triton.jit
def scaled_sum_kernel(x_ptr, y_ptr, scale, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places)
    tl.store(y_ptr + tl.program_id(0), tl.sum(tl.exp(x) * scale))


@triton.jit
def overflowing_kernel(x_ptr, stride, BLOCK: tl.constexpr):
    places = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    tl.store(x_ptr + places, 1.0, mask=places < 0)


@triton.jit
def masked_overflow_kernel(x_ptr, n, SHARED: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    places = tl.where(lanes < n, lanes, 2**30) * 4
    if SHARED:
        places = tl.where(lanes < n, places, 0)
    tl.store(x_ptr + places[:, None], 1.0, mask=((lanes < n) | SHARED)[:, None])


@triton.jit
def masked_scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    tl.store(y_ptr + places, x * 2.0, mask=places < n)


class Follower(Observer):
    def __init__(self, *programs: int) -> None:
        self.programs = programs
        self.operations: list[Operation] = []
        self.overflows: list[object] = []

    def follows(self, program: tuple[int, int, int]) -> bool:
        return program[0] in self.programs

    def operation(self, operation: Operation) -> None:
        self.operations.append(operation)

    def store(self, access: Any) -> None:
        self.overflows.append(access.overflow)

    def out_of_bounds(self, error: Any) -> None:
        """Ignore accesses out of bounds."""


def test_only_followed_programs_show_their_operations() -> None:
    x, y = torch.randn(128), torch.zeros(4)
    follower = Follower(1)
    interpret(scaled_sum_kernel, (4,), {"x_ptr": x, "y_ptr": y, "scale": 0.5, "BLOCK": 32}, follower)
    assert {operation.program for operation in follower.operations} == {(1, 0, 0)}
    assert [(one.kind, one.name) for one in follower.operations] == [
        ("load", "load"), ("special", "exp"), ("float", "fmul"), ("reduce", "reduce"), ("store", "store"),
    ]  # fmt: skip
    assert [one.inputs for one in follower.operations] == [(), (0,), (1,), (2,), (3,)]
    assert [one.elements for one in follower.operations] == [32, 32, 32, 32, 1]
    assert (follower.operations[0].argument, follower.operations[-1].argument) == ("x_ptr", "y_ptr")
    assert torch.allclose(y, (x.exp() * 0.5).view(4, 32).sum(1)), "following changes nothing"


def test_undefined_lanes_leave_no_recorder_behind() -> None:
    """A recorder left on the builder would show every later operation again, and slow all later launches down."""
    given = {"x_ptr": torch.randn(10), "y_ptr": torch.zeros(10), "n": 10, "BLOCK": 4}
    followers = [Follower(2), Follower(0, 1, 2)]
    for follower in followers:
        interpret(masked_scale_kernel, (3,), given, follower)
    assert [one.program[0] for one in followers[0].operations] == [2] * 3
    assert [one.program[0] for one in followers[1].operations] == [0] * 3 + [1] * 3 + [2] * 3
    assert not [name for name in vars(the_language().builder) if name.startswith("create_")]


class StrictTuple(tl.tuple):  # type: ignore[misc]  # Triton ships no types
    """A tuple of Triton 3.6, which raises a ValueError for an attribute that it does not have."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"{name!r} is not in list")


def test_shapes_of_triton_are_no_blocks() -> None:
    assert list(_handles([StrictTuple([tl.constexpr(4), tl.constexpr(8)]), [4, 8]])) == []


def test_overflow_of_32_bits_reaches_the_access() -> None:
    follower = Follower(0, 3)
    interpret(overflowing_kernel, (4,), {"x_ptr": torch.zeros(8), "stride": 2**30, "BLOCK": 8}, follower)
    assert [place is not None for place in follower.overflows] == [False, False, False, True]


def test_overflow_in_masked_lanes_does_not_reach_the_access() -> None:
    for shared in (False, True):
        follower = Follower(0)
        interpret(
            masked_overflow_kernel, (1,), {"x_ptr": torch.zeros(32), "n": 5, "SHARED": shared, "BLOCK": 8}, follower
        )
        assert follower.overflows == [None]


def test_overflow_in_one_active_lane_reaches_the_access() -> None:
    wide = {"x_ptr": torch.zeros(32), "stride": 2**31 - 4, "BLOCK": 8}
    interpret(overflowing_kernel, (2,), wide, follower := Follower(1))
    assert [place is not None for place in follower.overflows] == [False, True]


class Keeper:
    def __init__(self) -> None:
        self.launches: list[Launched] = []

    def launch(self, launched: Launched) -> str:
        self.launches.append(launched)
        return "kept"

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        return candidates[-1]


def test_launches_are_handed_over_instead_of_performed() -> None:
    x, y = torch.randn(128), torch.zeros(4)
    keeper = Keeper()
    with handing_over(keeper):
        assert scaled_sum_kernel[lambda meta: (128 // meta["BLOCK"],)](x, y, 0.5, BLOCK=32, num_warps=2) == "kept"
        interpret(scaled_sum_kernel, (4,), {"x_ptr": x, "y_ptr": y, "scale": 1, "BLOCK": 32}, options={"num_warps": 8})
    first, second = keeper.launches
    assert (first.kernel, first.grid, first.options) == (scaled_sum_kernel, (4, 1, 1), {"num_warps": 2})
    assert first.arguments["x_ptr"] is x
    assert first.arguments["BLOCK"] == 32
    assert second.options == {"num_warps": 8}
    assert y.sum() == 0


def test_an_autotuner_asks_which_configuration_to_take() -> None:
    configurations = [triton.Config({"BLOCK": block}) for block in (16, 32)]
    tuned = triton.autotune(configurations, key=[])(scaled_sum_kernel)
    keeper = Keeper()
    with handing_over(keeper):
        tuned[(4,)](torch.randn(128), torch.zeros(4), 0.5)
    assert keeper.launches[0].arguments["BLOCK"] == 32


def test_compiling_works_after_interpreting_even_what_triton_imports_late(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import torch, triton, triton.language as tl
from tilesmith.toolchain.compiler import Target, compile_kernel
from tilesmith.toolchain.interpreter import interpret

@triton.jit
def pair_kernel(x_ptr, sizes):
    for place in range(0, min(sizes[0], sizes[1])):
        tl.store(x_ptr + place, 1.0)

x = torch.zeros(8)
arguments = {"x_ptr": x, "sizes": (3, 5)}
interpret(pair_kernel, (1,), arguments)
assert x.sum() == 3
compile_kernel(pair_kernel, Target("cuda", 90), arguments, enable_fp_fusion=True)
""")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
