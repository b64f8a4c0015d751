"""Operators that stand for all where a test is about PyTorch's side of them and takes seconds for each."""

from __future__ import annotations

import pytest

from tilesmith.ops import SPECS

# One pointwise, one of several outputs, a norm with a bias, products on tensor cores, a softmax with state between its
# blocks, a composed one with the gradient of a bias.
REPRESENTATIVES = ("silu", "add_rms_norm", "layer_norm", "matmul", "attention", "triangle_attention")

assert set(REPRESENTATIVES) <= set(SPECS)

REPRESENTATIVES_FIRST = pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=name, marks=[] if name in REPRESENTATIVES else [pytest.mark.slow])
        for name, spec in SPECS.items()
    ],
)
"""The others are left to `make test-slow`."""
