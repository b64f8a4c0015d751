# mypy: ignore-errors
"""Flash attention: one program per block of queries; keys and values are loaded by descriptors."""

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DEVICE = "cuda:0"


@triton.jit
def attention_inner(accumulator, sums, largest, q, k_desc, v_desc, first_row, scale, lower, upper, rows,
                    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    for start in range(lower, upper, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = k_desc.load([first_row + start, 0]).T
        scores = tl.dot(q, k) * scale
        if CAUSAL:
            columns = start + tl.arange(0, BLOCK_N)
            scores = tl.where(rows[:, None] >= columns[None, :], scores, -1.0e6)
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.math.exp2(scores - new_largest[:, None])
        correction = tl.math.exp2(largest - new_largest)
        sums = sums * correction + tl.sum(weights, 1)
        accumulator = accumulator * correction[:, None]
        v = v_desc.load([first_row + start, 0])
        accumulator = tl.dot(weights.to(tl.float16), v, accumulator)
        largest = new_largest
    return accumulator, sums, largest


@triton.autotune(
    configs=[triton.Config({"BLOCK_M": 64, "BLOCK_N": 32}, num_stages=3, num_warps=4)], key=["N_CTX", "HEAD_DIM"]
)
@triton.jit
def attention_forward(q_desc, k_desc, v_desc, o_ptr, lse_ptr, scale, N_CTX, HEAD_DIM: tl.constexpr,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    first_row = head * N_CTX
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, HEAD_DIM)
    largest = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    accumulator = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    q = q_desc.load([first_row + block * BLOCK_M, 0])
    scale = scale * 1.44269504
    sums = sums * 0.0
    if CAUSAL:
        accumulator, sums, largest = attention_inner(
            accumulator, sums, largest, q, k_desc, v_desc, first_row, scale, 0, block * BLOCK_M, rows, BLOCK_N, False
        )
        accumulator, sums, largest = attention_inner(
            accumulator, sums, largest, q, k_desc, v_desc, first_row, scale, block * BLOCK_M,
            tl.minimum((block + 1) * BLOCK_M, N_CTX), rows, BLOCK_N, True,
        )  # fmt: skip
    else:
        accumulator, sums, largest = attention_inner(
            accumulator, sums, largest, q, k_desc, v_desc, first_row, scale, 0, N_CTX, rows, BLOCK_N, False
        )
    tl.store(lse_ptr + first_row + rows, largest + tl.math.log2(sums))
    places = (first_row + rows)[:, None] * HEAD_DIM + columns[None, :]
    tl.store(o_ptr + places, (accumulator / sums[:, None]).to(tl.float16))


def attention(q, k, v, causal):
    batch, heads, length, width = q.shape
    assert q.is_cuda
    o = torch.empty_like(q)
    lse = torch.empty((batch, heads, length), device=q.device, dtype=torch.float32)
    flat = [each.reshape(-1, width) for each in (q, k, v)]
    descriptors = [TensorDescriptor(each, list(each.shape), [width, 1], [block, width])
                   for each, block in zip(flat, (64, 32, 32), strict=True)]  # fmt: skip
    grid = lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), batch * heads, 1)  # noqa: E731  # the usual way to write a grid
    attention_forward[grid](*descriptors, o, lse, 1 / math.sqrt(width), length, HEAD_DIM=width, CAUSAL=causal)
    return o


torch.manual_seed(20)
q, k, v = (torch.empty((1, 2, 128, 64), dtype=torch.float16, device=DEVICE).normal_(0.0, 0.5) for _ in range(3))
for causal in (True, False):
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(attention(q, k, v, causal), expected, atol=1e-2, rtol=0)
