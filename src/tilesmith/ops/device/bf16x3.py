"""bf16x3: single precision as the sum of three bf16 numbers, x = high + middle + low.

The 24 bits of x's mantissa are three times eight, so the sum is exact. A product of two such numbers is nine products
of parts. Six of them matter: the other three are below 2⁻²¹ of the result, 2⁻²⁴ on average. Tensor cores multiply bf16
sixteen times as fast as CUDA cores multiply single precision, so six products on tensor cores are faster, and as
accurate.

The parts are truncated, not rounded. That needs no conversions, and no special case for the largest numbers and
infinities.
"""

import triton
import triton.language as tl

PARTS = tl.constexpr(3)


@triton.jit
def bf16_parts(x):
    """Return high, middle and low of single precision. For infinities and NaN only high has a meaning."""
    high = first_bits(x)
    rest = x - high
    middle = first_bits(rest)
    return as_bf16(high), as_bf16(middle), as_bf16(rest - middle)  # each with x's shape


@triton.jit
def first_bits(x):
    """Return single precision truncated to the bits that bf16 holds, as single precision."""
    return (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def as_bf16(x):
    """Return single precision as bf16, truncated."""
    return (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def dot_bf16_parts(a, b):
    """Return a·b of tiles in three parts each. The smallest products come first, so the largest is rounded last."""
    product = tl.dot(a[2], b[0])  # [M, N]
    product = tl.dot(a[1], b[1], product)
    product = tl.dot(a[0], b[2], product)
    product = tl.dot(a[1], b[0], product)
    product = tl.dot(a[0], b[1], product)
    return tl.dot(a[0], b[0], finite_or_zero(product))


@triton.jit
def finite_or_zero(z):
    """Return corrections, and zero for those that overflow: the products of the high parts then decide the result."""
    return tl.where(tl.abs(z) < float("inf"), z, 0.0)
