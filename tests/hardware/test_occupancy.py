# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""Occupancy against values worked out by hand, and against what AMD's compiler works out itself."""

import re

import pytest
import torch
import triton
import triton.language as tl

from tilesmith.hardware.devices import Architecture, for_target
from tilesmith.hardware.occupancy import Occupancy, occupancy
from tilesmith.toolchain.compiler import Target, compile_kernel

HOPPER = for_target("cuda:90")
CDNA3 = for_target("hip:gfx942")


@pytest.mark.parametrize(
    ("num_warps", "registers", "shared_bytes", "expected"),
    [
        # 32·32 = 1024 registers per warp: 64 warps, all there are.
        (4, 32, 0, Occupancy(1.0, 16, "warps")),
        # 48·32 = 1536, 65536 / 1536 = 42.7, in fours 40 warps: 10 blocks of 4.
        (4, 48, 16, Occupancy(40 / 64, 10, "registers")),
        # The fours are per partition: 42 warps would make 21 blocks of 2.
        (2, 48, 0, Occupancy(40 / 64, 20, "registers")),
        # 33·32 = 1056, in units of 256 it is 1280: 51 warps, in fours 48.
        (8, 33, 0, Occupancy(48 / 64, 6, "registers")),
        # 255·32 = 8160, in units of 256 it is 8192: 8 warps.
        (8, 255, 0, Occupancy(8 / 64, 1, "registers")),
        # 98304 + 1024 = 99328: 233472 / 99328 = 2.35.
        (8, 64, 98304, Occupancy(16 / 64, 2, "shared memory")),
        # Half of the shared memory less the reserved KiB: exactly two; one byte more: one.
        (4, 32, 233472 // 2 - 1024, Occupancy(8 / 64, 2, "shared memory")),
        (4, 32, 233472 // 2 - 1023, Occupancy(4 / 64, 1, "shared memory")),
        # 64 warps would fit, but only 32 blocks.
        (1, 32, 0, Occupancy(32 / 64, 32, "blocks")),
        # 128·32 = 4096: 16 warps, fewer than a block of 32 needs.
        (32, 128, 0, Occupancy(0.0, 0, "registers")),
    ],
)
def test_hopper_by_hand(num_warps: int, registers: int, shared_bytes: int, expected: Occupancy) -> None:
    assert occupancy(HOPPER, num_warps=num_warps, registers=registers, shared_bytes=shared_bytes) == expected


@pytest.mark.parametrize(
    ("num_warps", "registers", "shared_bytes", "expected"),
    [
        # 64 registers of 512: 8 waves on each of 4 SIMDs.
        (4, 64, 0, Occupancy(1.0, 8, "warps")),
        # 65 registers, in units of 8 they are 72: 7 waves on each SIMD.
        (4, 65, 0, Occupancy(28 / 32, 7, "registers")),
        # 124 are 128: 4 waves; a block of 8 waves needs 2 on each SIMD.
        (8, 124, 0, Occupancy(16 / 32, 2, "registers")),
        (4, 512, 0, Occupancy(4 / 32, 1, "registers")),
        # 32768 of 65536: two blocks.
        (8, 64, 32768, Occupancy(16 / 32, 2, "shared memory")),
        # In units of 512 one byte more is 33280.
        (8, 64, 32769, Occupancy(8 / 32, 1, "shared memory")),
    ],
)
def test_cdna3_by_hand(num_warps: int, registers: int, shared_bytes: int, expected: Occupancy) -> None:
    assert occupancy(CDNA3, num_warps=num_warps, registers=registers, shared_bytes=shared_bytes) == expected


def test_ada_has_fewer_warps_and_less_shared_memory() -> None:
    ada = for_target("cuda:89")
    assert occupancy(ada, num_warps=4, registers=40, shared_bytes=0) == Occupancy(1.0, 12, "warps")
    # 49152 + 1024 = 50176: 102400 / 50176 = 2.04.
    assert occupancy(ada, num_warps=4, registers=40, shared_bytes=49152) == Occupancy(8 / 48, 2, "shared memory")


@triton.jit
def squares_kernel(x_ptr, y_ptr, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, x / tl.sum(x * x, axis=0))


@pytest.mark.parametrize("target", ["hip:gfx942", "hip:gfx90a"])
@pytest.mark.parametrize("block_size", [1024, 16384, 32768])
def test_agrees_with_the_amd_compiler(target: str, block_size: int) -> None:
    x = torch.empty(block_size)
    binary = compile_kernel(squares_kernel, Target.parse(target), {"x_ptr": x, "y_ptr": x, "BLOCK_SIZE": block_size})
    waves_per_simd = int(re.findall(r"; Occupancy: (\d+)", binary.assembly["amdgcn"])[0])
    # The compiler's figure is for registers alone: Triton's shared memory is not known to it.
    found = occupancy(for_target(target), num_warps=4, registers=binary.registers, shared_bytes=0)
    assert found.blocks == waves_per_simd


@pytest.mark.parametrize(
    ("architecture", "num_warps", "registers", "shared_bytes", "limited_by"),
    [
        (HOPPER, 4, 256, 0, "registers"),
        (HOPPER, 4, 32, 232449, "shared memory"),
        (HOPPER, 64, 32, 0, "warps"),
        (CDNA3, 4, 513, 0, "registers"),
        (CDNA3, 4, 32, 65537, "shared memory"),
        (CDNA3, 32, 32, 0, "warps"),
    ],
)
def test_kernel_that_does_not_fit_has_no_occupancy(
    architecture: Architecture, num_warps: int, registers: int, shared_bytes: int, limited_by: str
) -> None:
    found = occupancy(architecture, num_warps=num_warps, registers=registers, shared_bytes=shared_bytes)
    assert found == Occupancy(0.0, 0, limited_by)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:89", "cuda:90", "cuda:100", "hip:gfx90a", "hip:gfx942"])
def test_largest_allowed_block_fits_once(target: str) -> None:
    architecture = for_target(target)
    largest = architecture.shared_bytes - architecture.reserved_shared_bytes
    found = occupancy(architecture, num_warps=4, registers=32, shared_bytes=largest)
    assert (found.blocks, found.limited_by) == (1, "shared memory")


@pytest.mark.parametrize(
    ("argument", "value", "least"), [("num_warps", 0, 1), ("registers", 0, 1), ("shared_bytes", -1, 0)]
)
def test_rejects_impossible_numbers(argument: str, value: int, least: int) -> None:
    arguments = {"num_warps": 4, "registers": 32, "shared_bytes": 0, argument: value}
    with pytest.raises(ValueError, match=f"{argument}: is {value}, must be at least {least}"):
        occupancy(HOPPER, **arguments)
