"""What all Hopper kernels share: warpgroups, their registers, mbarriers, and whether a plan may use such a kernel.

Hopper kernels are written in Gluon. Plans for the CPU and interpreted plans use the portable kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Plan
from tilesmith.toolchain import interpreter

TARGET = "cuda:90"
GROUP_WARPS = gl.constexpr(4)  # a warpgroup: the four warps that issue one wgmma together
FETCHING_REGISTERS = gl.constexpr(24)  # per thread of a producer warp; the consumers share the rest
REGISTERS_OF_A_MULTIPROCESSOR = 65536


@dataclass(frozen=True)
class ProducerConfig(Config):
    """Consumer warpgroups and one producer warp; `resident` programs on each multiprocessor."""

    resident: int = 1

    @property
    def consumers(self) -> int:
        """Return the number of consumer warpgroups."""
        return 2

    @property
    def all_warps(self) -> int:
        """Return all warps of a program: the producer takes a warpgroup, though three of its warps exit at once."""
        return (self.consumers + 1) * int(GROUP_WARPS.value)

    @property
    def registers_at_launch(self) -> int | None:
        """Return the registers of a thread at launch. By default one program may fill a multiprocessor."""
        return None if self.resident == 1 else self._equal_share

    @property
    def consumer_registers(self) -> int:
        """Return the registers per consumer thread: all that the producer's warpgroup leaves, in units of eight."""
        all_registers = self._equal_share * (self.consumers + 1)
        return (all_registers - int(FETCHING_REGISTERS.value)) // self.consumers // 8 * 8

    @property
    def _equal_share(self) -> int:
        return REGISTERS_OF_A_MULTIPROCESSOR // (32 * self.all_warps * self.resident) // 8 * 8


def runs_on_hopper(plan: Plan) -> bool:
    """Whether the plan runs on a Hopper GPU or compiles for one, and its kernels are not interpreted."""
    return plan.device.type != "cpu" and not interpreter.is_interpreting() and plan.architecture.target == TARGET


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate COUNT mbarriers in shared memory. Each completes when ARRIVALS warpgroups, or the TMA, have arrived."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def hidden_zero():
    """Return a zero that the compiler cannot fold: values computed from it stay in the loop, out of registers."""
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def fence_of_proxies():
    """Order memory accesses of threads and of TMA: those before this fence come before those after it."""
    gl.inline_asm_elementwise(
        "fence.proxy.async; mov.b32 $0, 0;", "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def wait_until_written():
    """Wait until this warp's TMA stores and sums are in memory. `tma.store_wait` waits until they have been read."""
    gl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.b32 $0, 0;", "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1
    )
