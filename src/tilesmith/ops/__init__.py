"""The operators. Each module here that defines a SPEC is one.

The imports below export every operator statically, so that editors and type checkers see its signature. `SPECS` is
found by looking: a module with a SPEC that is not exported here fails a test.
"""

from __future__ import annotations

import importlib
import pkgutil

from tilesmith.ops.add import add
from tilesmith.ops.add_rms_norm import add_rms_norm
from tilesmith.ops.attention import attention
from tilesmith.ops.attention_update import attention_update
from tilesmith.ops.attention_varlen import attention_varlen
from tilesmith.ops.avg_pool2d import avg_pool2d
from tilesmith.ops.conv2d import conv2d
from tilesmith.ops.cross_entropy import cross_entropy
from tilesmith.ops.edge_norm import edge_norm
from tilesmith.ops.gate import gate
from tilesmith.ops.layer_norm import layer_norm
from tilesmith.ops.linear_cross_entropy import linear_cross_entropy
from tilesmith.ops.matmul import matmul
from tilesmith.ops.max_pool2d import max_pool2d
from tilesmith.ops.msa_column_attention import msa_column_attention
from tilesmith.ops.msa_row_attention import msa_row_attention
from tilesmith.ops.outer_product_mean import outer_product_mean
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.rms_norm_relu import rms_norm_relu
from tilesmith.ops.rope import rope
from tilesmith.ops.runtime.dispatch import configured, use
from tilesmith.ops.silu import silu
from tilesmith.ops.softmax import softmax
from tilesmith.ops.sum import sum
from tilesmith.ops.swiglu import swiglu
from tilesmith.ops.transpose import transpose
from tilesmith.ops.triangle_attention import triangle_attention
from tilesmith.ops.triangle_multiply import triangle_multiply
from tilesmith.spec import Spec, of_module

_SHARED = ("device", "runtime")  # packages that hold no operator


def _find_specs() -> dict[str, Spec]:
    found = {}
    for entry in pkgutil.iter_modules(__path__):
        if entry.name not in _SHARED:
            module = importlib.import_module(f"{__name__}.{entry.name}")
            if hasattr(module, "SPEC"):
                spec = of_module(module, module.__name__)
                found[spec.name] = spec
    return dict(sorted(found.items()))


SPECS = _find_specs()
"""Every operator's spec, by name."""

__all__ = [
    "SPECS",
    "add",
    "add_rms_norm",
    "attention",
    "attention_update",
    "attention_varlen",
    "avg_pool2d",
    "configured",
    "conv2d",
    "cross_entropy",
    "edge_norm",
    "gate",
    "layer_norm",
    "linear_cross_entropy",
    "matmul",
    "max_pool2d",
    "msa_column_attention",
    "msa_row_attention",
    "outer_product_mean",
    "rms_norm",
    "rms_norm_relu",
    "rope",
    "silu",
    "softmax",
    "sum",
    "swiglu",
    "transpose",
    "triangle_attention",
    "triangle_multiply",
    "use",
]  # fmt: skip
