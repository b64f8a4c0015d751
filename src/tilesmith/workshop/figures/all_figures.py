"""The figure of each exercise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilesmith.workshop.figures import (
    attention,
    counting,
    cuda,
    memory,
    products,
    quantised,
    rows,
    space,
    tools,
    training,
    vectors,
)
from tilesmith.workshop.figures.drawing import Figure

FIGURES: dict[str, Callable[[], Figure]] = {
    "vector-add": vectors.vector_add,
    "masks": vectors.masks,
    "block-size": vectors.block_size,
    "two-dimensional-tiles": vectors.two_dimensional_tiles,
    "strides": vectors.strides,
    "vector-width": memory.alignment,
    "three-dimensions": memory.three_dimensions,
    "rms-norm": rows.rms_norm,
    "occupancy": training.occupancy,
    "autograd": training.autograd,
    "layer-norm-backward": training.layer_norm_statistics,
    "layer-norm": rows.layer_norm,
    "fused-norm-relu": rows.fused_norm_relu,
    "rms-norm-backward": rows.rms_norm_backward,
    "silu": vectors.silu,
    "reduction": vectors.reduction,
    "prefix-scan": counting.prefix_scan,
    "histogram": counting.histogram,
    "top-k": counting.top_k,
    "sparse-rows": counting.sparse_rows,
    "dequantise": quantised.dequantise,
    "softmax": rows.softmax,
    "online-softmax": rows.online_softmax,
    "cross-entropy": rows.cross_entropy,
    "rope": rows.rope,
    "swiglu": rows.swiglu,
    "pooling": space.pooling,
    "conv2d": space.im2col,
    "transpose-0": partial(memory.transpose_by_rows, stores=True),
    "transpose-1": partial(memory.transpose_by_rows, stores=False),
    "transpose-2": memory.transpose_tiles,
    "transpose-3": memory.vector_width,
    "transpose-4": memory.banks,
    "gemm-pytorch": products.roof_by_size,
    "gemm-0": products.tiles,
    "gemm-1": products.tile_order,
    "gemm-2": products.pipeline,
    "gemm-3": products.tuning,
    "gemm-4": products.every_size,
    "quantised-matmul": quantised.quantised_matmul,
    "persistent": products.persistent,
    "flash-attention": attention.flash_attention,
    "flash-attention-causal": attention.flash_attention_causal,
    "flash-attention-backward": attention.flash_attention_backward,
    "grouped-heads": training.grouped_heads,
    "triangle-multiply": space.triangle,
    "gpu-limits": tools.limits,
    "profiling": tools.roofline,
    "cuda-events": tools.events,
    "perf-report": tools.report,
    "rocprof": tools.dispatches,
    "portability": tools.portability,
    "autotune": tools.tuning_cost,
    "torch-compile": tools.graph,
    "interpreter-debugging": tools.interpreter,
    "spot-the-myth": tools.myth,
    "debug-llama": tools.six_stages,
    "mend-llama": tools.faults,
    "cuda-silu": cuda.threads,
    "cuda-copy-first-column": cuda.column_copy,
    "cuda-streams": cuda.streams,
    "cuda-divergence": cuda.divergence,
    "cuda-softmax": cuda.dynamic_shared,
    "cuda-unroll": cuda.unrolled,
    "cuda-reduction": cuda.block_reduction,
    "cuda-rms-norm-vector": partial(cuda.norm_blocks, matrix=False),
    "cuda-rms-norm-matrix": partial(cuda.norm_blocks, matrix=True),
    "cuda-transpose": cuda.warp_of_a_block,
    "cuda-transpose-shared": partial(memory.banks, swizzle=False),
}


def figure_of(exercise: str) -> Figure | None:
    """Return the figure of an exercise; None for an exercise without one, such as a private exercise."""
    draw = FIGURES.get(exercise)
    return None if draw is None else draw()
