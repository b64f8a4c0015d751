"""Activations of gates and hidden units, and their slopes: "silu", "gelu" and "gelu_tanh".

GELU's approximation by tanh is x · σ(p), with p a cubic polynomial of x: 0.5 · (1 + tanh(p/2)) = σ(p). SiLU is the same
with p = x. The sigmoid keeps the digits of small results, where 1 + tanh loses them.
"""

import triton
import triton.language as tl

LINEAR = tl.constexpr(1.5957691216057308)  # 2·√(2/π)
CUBIC = tl.constexpr(0.07135481627260025)  # 0.044715 times that
INVERSE_ROOT_2 = tl.constexpr(0.7071067811865476)
INVERSE_ROOT_2_PI = tl.constexpr(0.3989422804014327)


@triton.jit
def activation_and_slope(x, ACTIVATION: tl.constexpr):
    """Return the activation of x and its derivative at x, element by element."""
    if ACTIVATION == "gelu":
        below = 0.5 * (1 + tl.erf(x * INVERSE_ROOT_2))
        value, slope = x * below, below + x * INVERSE_ROOT_2_PI * tl.exp(-0.5 * x * x)
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
