"""Tiles, steps and registers of the half-precision Hopper kernels, as compile-time constants."""

from triton.experimental.gluon import language as gl

GROUPS = gl.constexpr(2)  # warpgroups that multiply
ROWS = gl.constexpr(64)  # rows of a warpgroup
COLUMNS = gl.constexpr(256)  # columns of a tile
DEPTH = gl.constexpr(64)  # depth of a step
REGISTERS = gl.constexpr(240)  # per thread that multiplies; the loading warp gives up its own
LOAD_REGISTERS = gl.constexpr(24)
STEP_BYTES = gl.constexpr((2 * 64 + 256) * 64 * 2)
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
