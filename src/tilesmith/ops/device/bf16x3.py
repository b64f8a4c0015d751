"""Single precision as three numbers of bf16: x = high + middle + low, each the first bits of what the ones before left.

The 24 bits of x's mantissa are cut into three times eight, so the sum is exact. Of the nine products of two such
numbers, six matter: the other three come to 2⁻²⁴ of the result on average, and below 2⁻²¹. Tensor cores multiply bf16
sixteen times as fast as the ordinary units multiply single precision, so six products on them are the faster way to the
same accuracy.

Bits are cut, not rounded: that takes no conversions, and neither the largest numbers nor infinities need care.
"""

import triton
import triton.language as tl

PARTS = tl.constexpr(3)


@triton.jit
def planes_of(x):
    """High, middle and low of single precision. Of an infinity or NaN the lesser two mean nothing."""
    high = first_bits(x)
    rest = x - high
    middle = first_bits(rest)
    return as_bf16(high), as_bf16(middle), as_bf16(rest - middle)


@triton.jit
def first_bits(x):
    """As much of single precision as bf16 holds."""
    return (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def as_bf16(x):
    """Of single precision that bf16 holds."""
    return (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def product_of_planes(a, b):
    """a·b of tiles in three planes each. The smallest products come first, so that the largest is rounded last."""
    product = tl.dot(a[2], b[0])
    product = tl.dot(a[1], b[1], product)
    product = tl.dot(a[0], b[2], product)
    product = tl.dot(a[1], b[0], product)
    product = tl.dot(a[0], b[1], product)
    return tl.dot(a[0], b[0], finite_or_zero(product))


@triton.jit
def finite_or_zero(z):
    """Corrections that overflow or meet an infinity mean nothing: the products of the high parts say what comes out."""
    return tl.where(tl.abs(z) < float("inf"), z, 0.0)
