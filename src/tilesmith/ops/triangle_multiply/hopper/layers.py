"""Device code that the Hopper kernels share: weights in shared memory, projections, gates, masks and norms."""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma

from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.triangle_multiply.hopper.ring import TILE_BYTES, WIDTH, N, make_barriers
from tilesmith.toolchain.gluon import fetch

LARGEST_EXPONENT = gl.constexpr(60.0)  # of 2: σ(−41.6) is 9e-19
PROPAGATE = gl.constexpr(tl.PropagateNan.ALL)


@gluon.jit
def make_vectors(COUNT: gl.constexpr, DTYPE: gl.constexpr):
    """Allocate shared memory for COUNT halves of vectors of 128."""
    return gl.allocate_shared_memory(DTYPE, [COUNT, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def store_vector(vectors, pointer, FIRST: gl.constexpr, COUNT: gl.constexpr):
    """Copy a vector to shared memory, zeros for None. In registers, or loaded for each tile, it costs more."""
    columns = gl.arange(0, N, gl.BlockedLayout([1], [32], [GROUP_WARPS], [0]))  # [64], as each half
    for part in gl.static_range(COUNT):
        if pointer is None:
            value = gl.zeros([N], vectors.dtype, columns.type.layout)
        else:
            value = gl.load(pointer + part * N + columns).to(vectors.dtype)
        vectors.index(FIRST + part).store(value)


@gluon.jit
def load_vector(vectors, place, LAYOUT: gl.constexpr):
    """Load half a vector from shared memory: [1, 64]."""
    return vectors.index(place).load(gl.SliceLayout(0, LAYOUT)).to(gl.float32)[None, :]


@gluon.jit
def load_weights(first_weight, second_weight, weights, BLOCKS: gl.constexpr):
    """Load both weights, [outputs, inputs], into shared memory, and wait.

    Each block of 64 outputs is two tiles, one for each half of the inputs. The second weight follows the first.
    """
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    fence_async_shared()
    mbarrier.expect(loaded, 2 * BLOCKS * 2 * TILE_BYTES)
    for block in gl.static_range(BLOCKS):
        for half in gl.static_range(2):
            fetch(first_weight, [block * N, half * N], loaded, weights.index(2 * block + half))
            fetch(second_weight, [block * N, half * N], loaded, weights.index(2 * BLOCKS + 2 * block + half))
    mbarrier.wait(loaded, 0)


@gluon.jit
def fill_shared_memory(
    like, first_layer, second_layer, norm, output_norm,
    BLOCKS: gl.constexpr, BIASED: gl.constexpr, SLOTS: gl.constexpr, STAGED: gl.constexpr,
):  # fmt: skip
    """Allocate and fill the shared memory of a kernel with two projections of BLOCKS · 64 outputs each.

    A layer is (weight, bias_ptr), a norm (weight_ptr, bias_ptr). `output_norm` is None where the kernel has one norm.
    Return weights, norm vectors, biases, the ring of SLOTS tiles like those of `like`, its mbarriers, and STAGED tiles
    for TMA stores.
    """
    first_weight, first_bias_ptr = first_layer
    second_weight, second_bias_ptr = second_layer
    norm_weight_ptr, norm_bias_ptr = norm
    weights = gl.allocate_shared_memory(like.dtype, [4 * BLOCKS, N, N], first_weight.layout)
    vectors = make_vectors(4 if output_norm is None else 8, gl.float32)
    store_vector(vectors, norm_weight_ptr, 0, 2)
    store_vector(vectors, norm_bias_ptr, 2, 2)
    if output_norm is not None:
        output_norm_weight_ptr, output_norm_bias_ptr = output_norm
        store_vector(vectors, output_norm_weight_ptr, 4, 2)
        store_vector(vectors, output_norm_bias_ptr, 6, 2)
    biases = make_vectors(2 * BLOCKS, like.dtype)
    if BIASED:
        store_vector(biases, first_bias_ptr, 0, BLOCKS)
        store_vector(biases, second_bias_ptr, BLOCKS, BLOCKS)
    ring = gl.allocate_shared_memory(like.dtype, [SLOTS, 1, 1, N, N], like.layout)
    staging = gl.allocate_shared_memory(like.dtype, [STAGED, 1, 1, N, N], like.layout)
    load_weights(first_weight, second_weight, weights, BLOCKS)
    ready = make_barriers(SLOTS)
    return weights, vectors, biases, ring, ready, staging


@gluon.jit
def start_projection(left, right, weights, first, biases, bias, ACC: gl.constexpr, BIASED: gl.constexpr):
    """Start [left, right] · Wᵀ + bias for 64 outputs: [64, 64]. W's tiles are `first` and the next."""
    total = gl.zeros([N, N], gl.float32, ACC)  # [64, 64]
    if BIASED:
        total += load_vector(biases, bias, ACC)
    total = warpgroup_mma(left, weights.index(first).permute([1, 0]), total, use_acc=BIASED, is_async=True)
    return warpgroup_mma(right, weights.index(first + 1).permute([1, 0]), total, is_async=True)


@gluon.jit
def start_projection_gradient(left, right, weights, first, ACC: gl.constexpr):
    """Start [left, right] · W for 64 inputs: [64, 64]."""
    zeros = gl.zeros([N, N], gl.float32, ACC)
    total = warpgroup_mma(left, weights.index(first), zeros, use_acc=False, is_async=True)
    return warpgroup_mma(right, weights.index(first + 2), total, is_async=True)


@gluon.jit
def sigmoid(x):
    """Return σ(x) of a tile [64, 64]. Neighbours share a reciprocal: 1/a = b · 1/(a·b).

    The special function unit is the bottleneck, and computes one and a half results an element, not two. A product of
    two bottoms stays below 2¹²⁰. A NaN makes its neighbour a NaN.
    """
    exponent = gl.minimum(x * -LOG2_E, LARGEST_EXPONENT, propagate_nan=PROPAGATE)
    even, odd = gl.split((1 + gl.exp2(exponent)).reshape([N, N // 2, 2]))  # [64, 32] each
    inverse = gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [even * odd], dtype=gl.float32, is_pure=True, pack=1
    )
    return gl.convert_layout(gl.join(odd * inverse, even * inverse).reshape([N, N]), x.type.layout)


@gluon.jit
def mask_bits(mask, batch, i, j, n_residues, MASKED: gl.constexpr):
    """Return all bits set for pairs that the mask has, none for others: [64, 1]."""
    kept = gl.full([N], -1, gl.int32, j.type.layout)
    if MASKED:
        mask_ptr, batch_stride, i_stride, j_stride = mask
        start = gl.cast(batch, gl.int64) * batch_stride + gl.cast(i, gl.int64) * i_stride
        kept = -(gl.load(mask_ptr + start + j * j_stride, mask=j < n_residues, other=0) != 0).to(gl.int32)
    return kept[:, None]


@gluon.jit
def masked(x, bits, MASKED: gl.constexpr):
    """Return zero for masked pairs, even where x is NaN. `gl.where` compiles to one select for each half register."""
    if MASKED:
        x = (x.to(gl.int32, bitcast=True) & bits).to(gl.float32, bitcast=True)
    return x


@gluon.jit
def standardise(x0, x1, eps):
    """Return rows of mean zero and variance one, in two halves [64, 64], and 1 / their deviation, [64]."""
    x0, x1 = x0.to(gl.float32), x1.to(gl.float32)
    mean = ((gl.sum(x0, 1) + gl.sum(x1, 1)) / WIDTH)[:, None]  # [64, 1]
    x0, x1 = x0 - mean, x1 - mean
    inverse = gl.rsqrt((gl.sum(x0 * x0, 1) + gl.sum(x1 * x1, 1)) / WIDTH + eps)  # [64]
    return x0 * inverse[:, None], x1 * inverse[:, None], inverse


@gluon.jit
def normed(x, vectors, place, DTYPE: gl.constexpr, ACC: gl.constexpr):
    """Return x · weight + bias, [64, 64], as the left operand of a wgmma. The bias is two places after the weight."""
    value = (x.to(gl.float32) * load_vector(vectors, place, ACC) + load_vector(vectors, place + 2, ACC)).to(DTYPE)
    return gl.convert_layout(value, gl.DotOperandLayout(0, ACC, 2))
