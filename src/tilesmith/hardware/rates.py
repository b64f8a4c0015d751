"""How fast a device multiplies matrices of single precision, by how exactly it does so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Triton's names for the ways to do it: of which products they are made, and how many make one. Of the 24 bits of single
# precision tf32 keeps 11 and bf16 keeps 8, so that further products have to stand for the rest. Three times eight are
# all 24: of the nine products of such parts, three lie below what single precision holds.
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
    """A way to multiply matrices of some dtype, and how many TFLOP/s of that dtype's products it gives."""

    name: str
    tflop_per_s: float

    @property
    def flops_per_ms(self) -> float:
        return self.tflop_per_s * 1e9


def single_precision_rate(rates: Mapping[str, float], precision: str) -> Rate | None:
    """The rate of one of Triton's ways, from TFLOP/s by dtype; None where there are no units for it."""
    dtype, products = _PRODUCTS[precision]
    if precision == "ieee" and "fp32 matrix" in rates:
        dtype = "fp32 matrix"
    if dtype not in rates:
        return None
    return Rate(f"{_IN_WORDS[products]} {dtype} products" if products > 1 else dtype, rates[dtype] / products)
