"""Activations of gates and hidden units, and their slopes: "silu", "gelu" and "gelu_tanh"; tanh for soft caps.

GELU is x · Φ(x), with Φ the normal distribution's. For 16-bit results Φ(−|x|) is exp(−x²/2) times a polynomial of
1/(1 + c·|x|). The polynomial was fitted to its relative error, 6e-7 at most. Gradients use the exponential again. So an
element takes 28 instructions on Hopper, its gradient 35; with erf 37 and 51. With erf geglu of 16384×4608 took 173 µs
on an H200, 59 % of the memory limit (`benchmarks/tuning/gelu_by_erf-h200.json`); the new form has not been timed.

GELU's approximation by tanh is x · σ(p), with p a cubic polynomial of x: 0.5 · (1 + tanh(p/2)) = σ(p). SiLU is the same
with p = x. The sigmoid keeps the digits of small results, where 1 + tanh loses them.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from tilesmith.ops.device.constants import LOG2_E

LINEAR = tl.constexpr(1.5957691216057308)  # 2·√(2/π)
CUBIC = tl.constexpr(0.07135481627260025)  # 0.044715 times that
INVERSE_ROOT_2 = tl.constexpr(0.7071067811865476)
INVERSE_ROOT_2_PI = tl.constexpr(0.3989422804014327)
TAIL_SCALE = tl.constexpr(0.2644579362)


@triton.jit
def activation_and_slope(x, ACTIVATION: tl.constexpr, SHORT: tl.constexpr):
    """Return the activation of x and its derivative, element by element. SHORT: for results in 16 bits."""
    if ACTIVATION == "gelu":
        if SHORT:
            bell = tl.exp2(x * x * (-0.5 * LOG2_E))  # exp(−x²/2)
            t = 1 / (1 + TAIL_SCALE * tl.abs(x))
            tail = ((-0.068584498 * t + 0.199632036) * t - 0.071637794) * t + 0.145768843
            tail = (((tail * t + 0.081629654) * t + 0.107822136) * t + 0.105369336) * t * bell  # Φ(−|x|)
            below = tl.where(x < 0, tail, 1 - tail)
        else:
            bell = tl.exp(-0.5 * x * x)
            below = 0.5 * (1 + tl.erf(x * INVERSE_ROOT_2))
        value, slope = x * below, below + x * INVERSE_ROOT_2_PI * bell
    elif ACTIVATION == "gelu_tanh":
        sigmoid = tl.sigmoid(x * (LINEAR + CUBIC * x * x))
        value = x * sigmoid
        # Far from zero 1 − σ is zero, and infinity times zero would be NaN.
        square = tl.minimum(x * x, 1e4)
        slope = sigmoid + x * sigmoid * (1 - sigmoid) * (LINEAR + 3 * CUBIC * square)
    else:
        sigmoid = tl.sigmoid(x)
        value, slope = x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))
    return value, slope


@triton.jit
def tanh(x, EXACT: tl.constexpr):
    """Return tanh(x) within one rounding of the result if EXACT, else within one rounding of 1 (five instructions)."""
    return libdevice.tanh(x) if EXACT else 1 - 2 / (1 + tl.exp2(x * (2 * LOG2_E)))
