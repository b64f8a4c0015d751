"""The passes of an exact product whose operands are split into bf16x3 in memory: five corrections, then high·high."""

import triton
import triton.language as tl

CORRECTION_PASSES = tl.constexpr(5)


@triton.jit
def parts_of_pass(number):
    """Return which parts of a and b the correction pass of this number multiplies, the smallest products first.

    low·high, middle·middle, high·low, middle·high, high·middle, where high is part 0, middle 1 and low 2. Two bits of
    each constant are the part for one pass.
    """
    return (0b00_01_00_01_10 >> (2 * number)) & 3, (0b01_00_10_01_00 >> (2 * number)) & 3


@triton.jit
def next_step(step, number, first_step, n_steps):
    """Return the next step and its pass: the first step of the next pass follows the last step of this one."""
    is_last = step + 1 == first_step + n_steps
    return tl.where(is_last, first_step, step + 1), number + is_last.to(tl.int32)


@triton.jit
def separately_added(total, a, b, PRECISION: tl.constexpr):
    """Return total + a·b, where the addition rounds as ordinary additions do.

    Tensor cores truncate their sums, so a total that stays in them loses a little at every step, always towards zero:
    4.4e-6 of it over a depth of 4096 on an H200, 9.1e-6 over 8192, and at the worst element more than twice what cuBLAS
    loses.
    """
    K: tl.constexpr = a.shape[1]
    # A limit on imprecise additions, which means nothing for bf16, keeps the compiler from fusing the addition.
    return total + tl.dot(a, b, input_precision=PRECISION, max_num_imprecise_acc=K)
