"""Single precision as three numbers of bf16: x = high + middle + low, each the rounding of what the ones before left.

The 24 bits of x's mantissa are split into three times eight, so the sum is exact. Of the nine products of two such
numbers, six matter: the other three are below 2⁻²⁴ of the result. Tensor cores multiply bf16 sixteen times as fast as
the ordinary units multiply single precision, so six products on them are the faster way to the same accuracy.
"""

import triton
import triton.language as tl

PARTS = tl.constexpr(3)
LARGEST_BF16 = tl.constexpr(3.3895313892515355e38)


@triton.jit
def planes_of(x, EXTREME: tl.constexpr):
    """High, middle and low of single precision; EXTREME where it may be infinite, or too large for bf16."""
    if EXTREME:
        # The largest numbers would round up to infinity. What is left of an infinity or NaN does not matter:
        # corrections that meet it are dropped.
        within = tl.clamp(x, -LARGEST_BF16, LARGEST_BF16)
        high = tl.where(tl.abs(x) < float("inf"), within, x).to(tl.bfloat16)
    else:
        high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    return high, middle, low


@triton.jit
def finite_or_zero(z):
    """Corrections that overflow or meet an infinity mean nothing: the products of the high parts say what comes out."""
    return tl.where(tl.abs(z) < float("inf"), z, 0.0)
