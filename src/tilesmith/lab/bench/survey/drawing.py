"""Draw cases of what people run: sizes, dtype and options of each operator.

A mixture. Half of all widths, vocabularies and head counts are those of published models. A quarter is off by a little:
unaligned, odd, prime. A quarter is log-uniform between sensible bounds. A draw depends on the operator and the seed
alone, so (operator, seed) names a set of cases. The order of calls to the generator is part of that promise: changing
the order changes the cases.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

Drawn = dict[str, Any]
"""One case: its sizes and options by name, and its dtype."""

WIDTHS = (
    64, 128, 192, 256, 320, 384, 512, 576, 640, 768, 896, 1024, 1152, 1280, 1536, 1792, 2048, 2304, 2560, 2880, 3072,
    3584, 4096, 4608, 5120, 5376, 6144, 6656, 7168, 8192, 9216, 10240, 11008, 12288, 13824, 14336, 16384, 18432, 20480,
    24576, 28672,
)  # fmt: skip
VOCABULARIES = (
    1000, 21128, 30522, 32000, 32064, 49152, 50257, 50280, 50304, 51865, 65024, 100277, 102400, 119547, 128256, 129280,
    151936, 152064, 200064, 256000, 262144,
)  # fmt: skip
HEADS = (  # of queries and of keys
    (8, 8), (12, 12), (12, 2), (14, 2), (16, 16), (16, 8), (16, 4), (20, 20), (24, 8), (28, 4), (32, 32), (32, 8),
    (32, 4), (40, 8), (48, 8), (64, 8), (71, 1),
)  # fmt: skip
HEAD_SIZES = (32, 40, 48, 64, 64, 64, 72, 80, 96, 112, 128, 128, 128, 160, 192, 256)
HIDDEN_WIDTHS = tuple(width for width in WIDTHS if 512 <= width <= 8192)
CHANNELS = (3, 16, 24, 32, 48, 64, 96, 100, 128, 192, 256, 320, 512)
SIDES = (7, 14, 28, 32, 56, 64, 112, 224)
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
MOST_BYTES = 3 << 30  # of the largest operand
MOST_FLOPS = 3e13  # of one attention
NEIGHBOURS = (-3, -2, -1, 1, 2, 3, 5, 7, 8, 16, 24)


class Generator:
    """Draws sizes and dtypes from one seeded stream of random numbers."""

    def __init__(self, operator: str, seed: int) -> None:
        self.random = random.Random(zlib.crc32(f"{operator}/{seed}".encode()))

    def choice(self, values: Sequence[Any]) -> Any:
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        """Return true in this share of all draws."""
        return self.random.random() < share

    def log_uniform(self, low: int, high: int) -> int:
        exponent: float = self.random.uniform(math.log(low), math.log(high))
        return round(math.exp(exponent))

    def off_by_a_little(self, size: int) -> int:
        return max(1, size + int(self.choice(NEIGHBOURS)))

    def width(self, values: Sequence[int] = WIDTHS, low: int = 1, high: int = 65536) -> int:
        """Return one of the values, a neighbour of one, or a log-uniform size."""
        share = self.random.random()
        if share < 0.5:
            return int(self.choice(values))
        return self.off_by_a_little(self.choice(values)) if share < 0.75 else self.log_uniform(low, high)

    def dtype(self) -> str:
        return self.random.choices(("bfloat16", "float16", "float32"), (6, 2, 2))[0]

    def dtype_of(self, dtypes: Sequence[str]) -> str:
        """Return the first of two dtypes in four of five draws."""
        return self.random.choices(dtypes, (4, 1))[0]

    def residues(self) -> int:
        """Return a length of a protein or a crop."""
        return int(self.choice((64, 128, 256, 384, 512, 768))) if self.chance(0.4) else self.log_uniform(24, 900)


def rows_and_columns(draw: Generator) -> Drawn:
    dtype = draw.dtype()
    columns = draw.width()
    rows = max(1, min(draw.log_uniform(1, 262144), MOST_BYTES // (columns * ELEMENT_BYTES[dtype])))
    return {"rows": rows, "columns": columns, "dtype": dtype}


def vocabulary_rows(draw: Generator) -> Drawn:
    dtype = draw.dtype()
    columns = draw.width(VOCABULARIES, 10, 300000)
    rows = max(1, min(draw.log_uniform(64, 32768), MOST_BYTES // (columns * ELEMENT_BYTES[dtype])))
    return {"rows": rows, "columns": columns, "dtype": dtype}


def softmax(draw: Generator) -> Drawn:
    drawn: Drawn = draw.choice((rows_and_columns, vocabulary_rows))(draw)
    return drawn


def matmul(draw: Generator) -> Drawn:
    """Draw an m×n product over k. Three in ten have few rows, as when a model generates text."""
    dtype = draw.dtype()
    few = draw.chance(0.3)
    m = draw.log_uniform(1, 64) if few else draw.log_uniform(64, 32768)
    n, k = draw.width(low=8, high=32768), draw.width(low=8, high=32768)
    while m * n * k > 2 ** (43 if dtype != "float32" else 41):
        m, n = max(1, m // 2), max(8, n // 2)
    return {"m": m, "n": n, "k": k, "layout": draw.choice(("NN", "NT", "TN", "TT")), "dtype": dtype}


def attention(draw: Generator) -> Drawn:
    heads, key_heads = draw.choice(HEADS)
    head_size = draw.choice(HEAD_SIZES)
    dtype = draw.dtype_of(("bfloat16", "float16"))
    share = draw.random.random()
    if share < 0.4:
        keys = draw.choice((128, 256, 512, 1024, 2048, 4096, 8192, 16384))
    elif share < 0.6:
        keys = draw.off_by_a_little(draw.choice((64, 256, 512, 1024, 2048, 4096)))
    else:
        keys = draw.log_uniform(16, 16384)
    queries = 1 if draw.chance(0.12) else keys
    batch = draw.log_uniform(1, 64)
    while batch > 1 and (
        batch * heads * keys * head_size * 2 > MOST_BYTES // 8
        or 4 * batch * heads * queries * keys * head_size > MOST_FLOPS
    ):
        batch //= 2
    causal = queries == keys and draw.chance(0.7)
    return {
        "batch": batch, "heads": heads, "key_heads": key_heads, "queries": queries, "keys": keys,
        "head_size": head_size, "causal": causal, "dtype": dtype,
    }  # fmt: skip


def triangle_multiply(draw: Generator) -> Drawn:
    return {
        "batch": 1,
        "residues": draw.residues(),
        "channels": draw.choice((32, 64, 128, 128, 128, 256)),
        "direction": draw.choice(("outgoing", "incoming")),
        "dtype": draw.dtype_of(("bfloat16", "float32")),
    }


def triangle_attention(draw: Generator) -> Drawn:
    return {
        "batch": 1,
        "residues": min(draw.residues(), 640),
        "heads": draw.choice((2, 4, 4, 8)),
        "head_size": draw.choice((16, 32, 32, 64)),
        "starting": draw.chance(0.5),
        "dtype": draw.dtype_of(("bfloat16", "float32")),
    }


def conv2d(draw: Generator) -> Drawn:
    channels, filters = draw.choice(CHANNELS), draw.choice(CHANNELS)
    side = draw.choice(SIDES)
    batch = max(1, min(draw.log_uniform(1, 128), (1 << 28) // (max(channels, filters) * side * side)))
    return {
        "batch": batch,
        "channels": channels,
        "filters": filters,
        "side": side,
        "kernel": draw.choice((1, 3, 3, 3, 5, 7)),
        "stride": draw.choice((1, 1, 2)),
        "channels_last": draw.chance(0.6),
        "dtype": draw.dtype(),
    }


def transpose(draw: Generator) -> Drawn:
    dtype = draw.dtype()
    rows, columns = draw.width(high=32768), draw.width(high=32768)
    while rows * columns * ELEMENT_BYTES[dtype] > MOST_BYTES:
        rows //= 2
    return {"rows": rows, "columns": columns, "dtype": dtype}


def rope(draw: Generator) -> Drawn:
    heads, key_heads = draw.choice(HEADS)
    head_size = draw.choice(HEAD_SIZES)
    positions = draw.width((128, 512, 1024, 2048, 4096, 8192), 1, 16384)
    batch = max(1, min(draw.log_uniform(1, 64), (1 << 29) // (heads * positions * head_size)))
    return {
        "batch": batch, "positions": positions, "heads": heads, "key_heads": key_heads, "head_size": head_size,
        "dtype": draw.dtype(),
    }  # fmt: skip


def linear_cross_entropy(draw: Generator) -> Drawn:
    features, classes = draw.width(HIDDEN_WIDTHS, 64, 8192), draw.width(VOCABULARIES, 1000, 262144)
    rows = max(1, min(draw.log_uniform(64, 16384), 2**42 // (features * classes)))
    return {"rows": rows, "features": features, "classes": classes, "dtype": draw.dtype_of(("bfloat16", "float16"))}


def pooling(draw: Generator) -> Drawn:
    channels, side = draw.choice(CHANNELS), draw.choice(SIDES)
    batch = max(1, min(draw.log_uniform(1, 128), (1 << 28) // (channels * side * side)))
    return {
        "batch": batch, "channels": channels, "side": side, "channels_last": draw.chance(0.6), "dtype": draw.dtype()
    }  # fmt: skip


def alignment_attention(draw: Generator) -> Drawn:
    """Draw an attention along one side of a multiple sequence alignment."""
    return {
        "sequences": draw.width((32, 64, 128, 256, 512), 1, 1024),
        "residues": min(draw.residues(), 512),
        "heads": draw.choice((4, 8, 8, 16)),
        "head_size": draw.choice((8, 16, 32, 32)),
        "dtype": draw.dtype_of(("bfloat16", "float32")),
    }


def outer_product_mean(draw: Generator) -> Drawn:
    return {
        "sequences": draw.width((32, 64, 128, 256, 512), 1, 1024),
        "residues": min(draw.residues(), 512),
        "channels": draw.choice((16, 32, 32)),
        "outputs": draw.choice((64, 128, 128)),
        "dtype": draw.dtype_of(("bfloat16", "float32")),
    }


def edge_norm(draw: Generator) -> Drawn:
    return {
        "residues": min(draw.residues(), 640),
        "channels": draw.choice((32, 64, 128, 128, 256)),
        "heads": draw.choice((2, 4, 4, 8)),
        "dtype": draw.dtype_of(("bfloat16", "float32")),
    }


def transition(draw: Generator) -> Drawn:
    channels = draw.choice((32, 64, 128, 128, 256, 384))
    return {
        "rows": draw.log_uniform(64, 262144),
        "channels": channels,
        "hidden": channels * draw.choice((2, 4, 4)),
        "dtype": draw.dtype_of(("bfloat16", "float32")),
    }


DRAW: dict[str, Callable[[Generator], Drawn]] = {
    **dict.fromkeys(
        ("add", "silu", "gate", "swiglu", "rms_norm", "add_rms_norm", "rms_norm_relu", "layer_norm", "sum"),
        rows_and_columns,
    ),
    "softmax": softmax,
    "cross_entropy": vocabulary_rows,
    "matmul": matmul,
    "attention": attention,
    "triangle_multiply": triangle_multiply,
    "triangle_attention": triangle_attention,
    "conv2d": conv2d,
    "transpose": transpose,
    "rope": rope,
    "linear_cross_entropy": linear_cross_entropy,
    "max_pool2d": pooling,
    "avg_pool2d": pooling,
    "msa_row_attention": alignment_attention,
    "msa_column_attention": alignment_attention,
    "outer_product_mean": outer_product_mean,
    "edge_norm": edge_norm,
    "transition": transition,
}


def draw(operator: str, seed: int, count: int) -> list[Drawn]:
    """Return the first cases of a seed. An operator without a distribution of its own gets rows and columns."""
    generator = Generator(operator, seed)
    one = DRAW.get(operator, rows_and_columns)
    return [one(generator) for _ in range(count)]
