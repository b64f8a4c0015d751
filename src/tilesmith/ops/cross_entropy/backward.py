"""The backward: with p = softmax(x) and q the target's distribution, dx = (p − q) · dloss. Where the loss is a mean, dx
is divided by the number of rows that count."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.cross_entropy.forward import tile_across_rows
from tilesmith.ops.cross_entropy.rows import exponential, load_targets
from tilesmith.ops.cross_entropy.wide_rows import takes_rows
from tilesmith.ops.device.aligned_rows import cut_rows, edges_of, tile_pointers
from tilesmith.ops.device.elementwise import TileConfig, compute_dtype, tile_config, tile_grid
from tilesmith.ops.device.row_chunks import VECTOR_BYTES, has_edges
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import Rows, as_rows, tile_offsets
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_rows", "ignore_index"])
def cross_entropy_backward_kernel(
    dloss_ptr, logits_ptr, target_ptr, kept_ptr, dlogits_ptr,
    dloss_strides, logits_strides, target_strides, dlogits_strides, n_rows, sizes, ignore_index, label_smoothing,
    REDUCED: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Write one tile of dlogits, which may be the logits' own memory."""
    n_classes = sizes[0]
    # The last rows first: the forward read them last, so they are still in the L2 cache.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    blocks_per_row = tl.cdiv(n_classes, BLOCK_SIZE)
    rows = (program // blocks_per_row).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first_column = program % blocks_per_row * BLOCK_SIZE
    columns = first_column + tl.arange(0, BLOCK_SIZE)
    in_row = (columns < n_classes)[None, :]
    target, counts, is_class = load_targets(
        target_ptr, rows, n_rows, sizes, target_strides, ignore_index, NESTED
    )  # fmt: skip
    shift = tl.load(kept_ptr + 2 * rows[:, None], mask=counts, other=0.0)  # [ROWS, 1]
    inverse_sum = tl.load(kept_ptr + 2 * rows[:, None] + 1, mask=counts, other=0.0)  # [ROWS, 1]
    if REDUCED:
        dloss = tl.load(dloss_ptr).to(COMPUTE) * tl.load(kept_ptr + 2 * n_rows.to(tl.int64))
    else:
        dloss_pointers = dloss_ptr + tile_offsets(rows, tl.arange(0, 1), sizes, dloss_strides, NESTED)
        dloss = tl.load(dloss_pointers, mask=counts, other=0.0).to(COMPUTE)
    scale, for_target, for_others = factors_of_rows(dloss, inverse_sum, counts, is_class, n_classes, label_smoothing)
    target_in_block = (target - first_column).to(tl.int32)

    x_pointers = logits_ptr + tile_offsets(rows, columns, sizes, logits_strides, NESTED)
    x = tl.load(x_pointers, mask=counts & in_row, other=0.0).to(COMPUTE)  # [ROWS, BLOCK_SIZE]
    dx = gradient_of_block(x, shift, scale, target_in_block, for_target, for_others)
    dx_pointers = dlogits_ptr + tile_offsets(rows, columns, sizes, dlogits_strides, NESTED)
    tl.store(dx_pointers, dx.to(dlogits_ptr.dtype.element_ty), mask=(rows < n_rows)[:, None] & in_row)


@triton.jit(do_not_specialize=["n_rows", "ignore_index"])
def cross_entropy_row_backward_kernel(
    dloss_ptr, logits_ptr, target_ptr, kept_ptr, dlogits_ptr,
    dloss_stride, logits_stride, target_stride, dlogits_stride, n_rows, n_classes, ignore_index, label_smoothing,
    REDUCED: tl.constexpr, EDGES: tl.constexpr, VECTOR: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """As `cross_entropy_backward_kernel`, for a block of one wide row from any address on. EDGES: see `cut_rows`."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    blocks_per_row = tl.cdiv(n_classes, BLOCK_SIZE)
    row = (program // blocks_per_row).to(tl.int64)
    first_column = program % blocks_per_row * BLOCK_SIZE
    target = tl.load(target_ptr + row * target_stride)
    counts = target != ignore_index
    shift = tl.load(kept_ptr + 2 * row, mask=counts, other=0.0)
    inverse_sum = tl.load(kept_ptr + 2 * row + 1, mask=counts, other=0.0)
    if REDUCED:
        dloss = tl.load(dloss_ptr).to(COMPUTE) * tl.load(kept_ptr + 2 * n_rows.to(tl.int64))
    else:
        dloss = tl.load(dloss_ptr + row * dloss_stride).to(COMPUTE)
    is_class = (target >= 0) & (target < n_classes)
    scale, for_target, for_others = factors_of_rows(dloss, inverse_sum, counts, is_class, n_classes, label_smoothing)

    x_ptr = logits_ptr + row * logits_stride
    dx_ptr = dlogits_ptr + row * dlogits_stride
    lead, length = cut_rows(x_ptr, n_classes, VECTOR, EDGES)
    columns = first_column + tl.arange(0, BLOCK_SIZE)
    in_middle = columns < length
    x = tl.load(tile_pointers(x_ptr + lead, columns, 1, True), mask=in_middle & counts, other=0.0).to(COMPUTE)
    target_in_block = (target - lead - first_column).to(tl.int32)
    dx = gradient_of_block(x, shift, scale, target_in_block, for_target, for_others)  # [BLOCK_SIZE]
    dx = dx.to(dlogits_ptr.dtype.element_ty)
    tl.store(tile_pointers(dx_ptr + lead, columns, 1, True), dx, mask=in_middle)
    if EDGES:  # noqa: SIM102  # decided at compile time, and the next one is not
        if first_column == 0:
            edge_columns, exists = edges_of(lead, length, n_classes, VECTOR)
            edges = tl.load(x_ptr + edge_columns, mask=exists & counts, other=0.0).to(COMPUTE)  # [2 · VECTOR]
            dedges = gradient_of(edges, edge_columns == target, shift, scale, for_target, for_others)
            tl.store(dx_ptr + edge_columns, dedges.to(dlogits_ptr.dtype.element_ty), mask=exists)


@triton.jit
def factors_of_rows(dloss, inverse_sum, counts, is_class, n_classes, label_smoothing):
    """Return three factors of each row, [ROWS, 1]: of its exponentials, and what to subtract for the target and for all
    other classes. An element has time for few instructions, so the work is done once a row.

    Rows that do not count get factors of zero. Rows whose target is no class get NaN.
    """
    dloss = tl.where(counts, tl.where(is_class, dloss, float("nan")), 0.0)
    for_others = dloss * (label_smoothing / tl.cast(n_classes, dloss.dtype))
    return dloss * inverse_sum, dloss * (1 - label_smoothing) + for_others, for_others


@triton.jit
def gradient_of_block(x, shift, scale, target_in_block, for_target, for_others):
    """Return the gradient of a block of logits, [ROWS, BLOCK_SIZE], or [BLOCK_SIZE] of one row."""
    is_target = tl.arange(0, x.shape[len(x.shape) - 1]) == target_in_block
    return gradient_of(x, is_target, shift, scale, for_target, for_others)


@triton.jit
def gradient_of(x, is_target, shift, scale, for_target, for_others):
    """Return the gradient of logits; `is_target` says which of them are their row's target."""
    return exponential(x - shift) * scale - tl.where(is_target, for_target, for_others)


def gradient_config(walk: Rows, element_bytes: int) -> TileConfig:
    """Return the default tile of the backward."""
    if walk.column_strides[0] != 1:
        return tile_across_rows(walk)
    if walk.columns <= 2048:
        return tile_config(walk, element_bytes)
    # 128 bytes a thread, so that many elements share the work done once a row: on an H200 in bf16 8192×32000 takes
    # 259 µs (4.05 TB/s) and 4096×128256 takes 513 µs; with 64 bytes 276 and 539. Where blocks would have idle lanes, or
    # rows have edges, 32 bytes: 22499×9056 227 and 245, 18792×32575 597 and 628, 1191×200069 232 and 243.
    per_vector, vectors = 128 * 16 // element_bytes, 2 if has_edges(walk, 16, 2) else 8
    while vectors > 2 and triton.cdiv(walk.columns, vectors * per_vector) * vectors * per_vector > 1.15 * walk.columns:
        vectors //= 2
    return TileConfig(num_warps=4, BLOCK_SIZE=per_vector * vectors)


@kernels("cross_entropy_backward")
def backward(
    dloss: Tensor,
    logits: Tensor,
    target: Tensor,
    kept: Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Tensor:
    return torch.empty_like(logits)


@backward.plan
def plan_backward(
    plan: Plan, dloss: Operand, logits: Operand, target: Operand, kept: Operand, ignore_index: int,
    label_smoothing: float, reduction: str,
) -> Operand:  # fmt: skip
    dlogits = plan.empty_like(logits)
    plan_gradient(plan, dloss, logits, target, kept, dlogits, ignore_index, label_smoothing, reduction)
    return dlogits


def plan_gradient(
    plan: Plan, dloss: Operand, logits: Operand, target: Operand, kept: Operand, dlogits: Operand, ignore_index: int,
    label_smoothing: float, reduction: str,
) -> None:  # fmt: skip
    """Put dlogits on the plan. It may be the logits' own memory."""
    reduced = reduction != "none"
    dloss_strides = (0,) * len(logits.shape) if reduced else (*dloss.strides, 0)
    walk = as_rows(logits.shape, logits.strides, dlogits.strides, (*target.strides, 0), dloss_strides)
    config = plan.choose(gradient_config(walk, logits.element_bytes), walk.columns_bucket, logits.dtype)
    arguments: dict[str, object] = {
        "dloss_ptr": dloss, "logits_ptr": logits, "target_ptr": target, "kept_ptr": kept, "dlogits_ptr": dlogits,
        "ignore_index": ignore_index, "label_smoothing": float(label_smoothing),
        "REDUCED": reduced, "COMPUTE": compute_dtype(logits.dtype),
    }  # fmt: skip
    names = ("logits", "dlogits", "target", "dloss")
    if takes_rows(walk, config.ROWS, logits, dlogits):
        strides = {f"{name}_stride": strides[0] for name, strides in zip(names, walk.strides, strict=True)}
        plan.launch(
            cross_entropy_row_backward_kernel, tile_grid(walk, config), config, **arguments, **strides,
            EDGES=has_edges(walk, 16, 2), VECTOR=VECTOR_BYTES // logits.element_bytes,
            n_rows=walk.rows, n_classes=walk.columns,
        )  # fmt: skip
    else:
        plan.launch(
            cross_entropy_backward_kernel, tile_grid(walk, config), config, **arguments, **walk.arguments(*names)
        )  # fmt: skip
