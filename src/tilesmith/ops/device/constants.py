"""Mathematical constants of device code."""

import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x · log₂ e); the hardware computes exp2 only
