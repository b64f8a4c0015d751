"""The operators. Each module or package with a SPEC is one.

The imports below export every operator statically, so that editors and type checkers see its signature. `SPECS` is
collected at import. A test fails where a module with a SPEC is not exported here.

Files, in reading order:

- `silu.py`: x · σ(x). Read this operator first.
- `add.py`: x + y.
- `swiglu/`: silu(gate) · up.
- `gelu.py`: x · Φ(x).
- `geglu.py`: gelu(gate) · up.
- `gate.py`: x · σ(gate), for gated attention.
- `transpose.py`: the last two dimensions exchanged.
- `sum.py`: sums over any dimensions.
- `softmax/`: softmax along one dimension.
- `rope/`: rotary position embedding.
- `rms_norm/`: RMS norm.
- `add_rms_norm.py`: a residual sum and its RMS norm.
- `rms_norm_rope/`: RMS norm of each head of q and k, and their rotation.
- `rms_norm_relu.py`: RMS norm and ReLU.
- `layer_norm/`: layer norm.
- `edge_norm/`: layer norm and the projection to an attention bias.
- `cross_entropy/`: cross entropy of logits.
- `linear_cross_entropy/`: cross entropy of a projection, without the logits in memory.
- `matmul/`: GEMM with bias and activation.
- `transition.py`: norm, expansion, ReLU and contraction in one operator.
- `attention/`: FlashAttention with masks, bias, windows and dropout.
- `attention_varlen.py`: attention over packed sequences of different lengths.
- `triangle_attention/`: attention along the rows or columns of a pair representation.
- `msa_row_attention.py`: attention along each sequence of an alignment.
- `msa_column_attention.py`: attention along each column of an alignment.
- `attention_update/`: a whole attention branch, from norm to output projection.
- `triangle_multiply/`: the triangle multiplicative update.
- `outer_product_mean/`: the mean of outer products over sequences.
- `conv2d/`: convolution of images.
- `max_pool2d.py`: maximum over windows of an image.
- `avg_pool2d.py`: mean over windows of an image.
- `device/`: device code that several operators share.
- `runtime/`: declaring, planning, dispatch and tuning.
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
from tilesmith.ops.geglu import geglu
from tilesmith.ops.gelu import gelu
from tilesmith.ops.layer_norm import layer_norm
from tilesmith.ops.linear_cross_entropy import linear_cross_entropy
from tilesmith.ops.matmul import matmul
from tilesmith.ops.max_pool2d import max_pool2d
from tilesmith.ops.msa_column_attention import msa_column_attention
from tilesmith.ops.msa_row_attention import msa_row_attention
from tilesmith.ops.outer_product_mean import outer_product_mean
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.rms_norm_relu import rms_norm_relu
from tilesmith.ops.rms_norm_rope import rms_norm_rope
from tilesmith.ops.rope import rope
from tilesmith.ops.runtime.dispatch import configured, use
from tilesmith.ops.silu import silu
from tilesmith.ops.softmax import softmax
from tilesmith.ops.sum import sum
from tilesmith.ops.swiglu import swiglu
from tilesmith.ops.transition import transition
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
    "geglu",
    "gelu",
    "layer_norm",
    "linear_cross_entropy",
    "matmul",
    "max_pool2d",
    "msa_column_attention",
    "msa_row_attention",
    "outer_product_mean",
    "rms_norm",
    "rms_norm_relu",
    "rms_norm_rope",
    "rope",
    "silu",
    "softmax",
    "sum",
    "swiglu",
    "transition",
    "transpose",
    "triangle_attention",
    "triangle_multiply",
    "use",
]  # fmt: skip
