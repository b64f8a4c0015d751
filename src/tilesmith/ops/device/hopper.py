"""What all Hopper kernels share: warpgroups, mbarriers, and whether a plan may use such a kernel.

Hopper kernels are written in Gluon. Plans for the CPU and interpreted plans use the portable kernels.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tilesmith.ops.runtime.plan import Plan
from tilesmith.toolchain import interpreter

TARGET = "cuda:90"
GROUP_WARPS = gl.constexpr(4)  # a warpgroup: the four warps that issue one wgmma together


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
