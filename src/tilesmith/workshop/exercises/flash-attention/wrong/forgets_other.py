# fails: runs (have no value)
import torch
import triton
import triton.language as tl

BLOCK = 32


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, length, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(1) * length * WIDTH
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    feature = tl.arange(0, WIDTH)
    query_offsets = head + query[:, None] * WIDTH + feature[None, :]
    query_mask = (query < length)[:, None]
    q = tl.load(q_ptr + query_offsets, mask=query_mask)
    largest = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    accumulator = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        key = start + tl.arange(0, BLOCK)
        key_offsets = head + key[:, None] * WIDTH + feature[None, :]
        k = tl.load(k_ptr + key_offsets, mask=(key < length)[:, None])
        v = tl.load(v_ptr + key_offsets, mask=(key < length)[:, None])
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where((key < length)[None, :], scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        correction = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest[:, None])
        total = total * correction + tl.sum(weights, axis=1)
        accumulator = accumulator * correction[:, None]
        accumulator = tl.dot(weights.to(v.dtype), v, accumulator)
        largest = new_largest
    tl.store(out_ptr + query_offsets, accumulator / total[:, None], mask=query_mask)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return softmax(q · kᵀ / √width) · v, for contiguous [heads, length, width]."""
    heads, length, width = q.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(length, BLOCK), heads)
    attention_kernel[grid](q, k, v, out, length, width**-0.5, WIDTH=width, BLOCK=BLOCK)
    return out
