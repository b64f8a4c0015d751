"""Rates of matrix products in single precision, for each of Triton's precisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Triton's precisions: the dtype of their products, and how many of these make one product of single precision. Single
# precision has 24 bits, tf32 keeps 11 and bf16 keeps 8; further products add the rest. Three bf16 parts have all 24
# bits; of their nine products, three are below single precision.
_PRODUCTS = {
    "ieee": ("fp32", 1),
    "tf32": ("tf32", 1),
    "tf32x3": ("tf32", 3),
    "bf16x3": ("bf16", 3),
    "bf16x6": ("bf16", 6),
}
SINGLE_PRECISIONS = tuple(_PRODUCTS)
_IN_WORDS = {3: "three", 6: "six"}


@dataclass(frozen=True)
class Rate:
    """A rate of matrix products in TFLOP/s, and the name of the units or products behind it."""

    name: str
    tflop_per_s: float

    @property
    def flops_per_ms(self) -> float:
        return self.tflop_per_s * 1e9


def single_precision_rate(rates: Mapping[str, float], precision: str) -> Rate | None:
    """Return the rate of one of Triton's precisions, from TFLOP/s by dtype; None where no units compute it."""
    dtype, products = _PRODUCTS[precision]
    if precision == "ieee" and "fp32 matrix" in rates:
        dtype = "fp32 matrix"
    if dtype not in rates:
        return None
    return Rate(f"{_IN_WORDS[products]} {dtype} products" if products > 1 else dtype, rates[dtype] / products)
