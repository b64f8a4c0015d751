# fails: right (stored by program)
import torch
import triton
import triton.language as tl

BLOCK = 32


@triton.jit
def weights_and_score_gradient(q, k, v, out_gradient, log_total, delta, query, key, length, scale):
    """Return the tile of attention weights, and the gradient of its scores."""
    scores = tl.dot(q, tl.trans(k)) * scale
    seen = (query < length)[:, None] & (key < length)[None, :]
    weights = tl.where(seen, tl.exp(scores - log_total[:, None]), 0.0)
    weight_gradient = tl.dot(out_gradient, tl.trans(v))
    return weights, weights * (weight_gradient - delta[:, None])


@triton.jit
def query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, out_gradient_ptr, out_ptr, log_total_ptr, q_gradient_ptr, length, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * length
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    feature = tl.arange(0, WIDTH)
    offsets = (head + query)[:, None] * WIDTH + feature[None, :]
    mask = (query < length)[:, None]
    q = tl.load(q_ptr + offsets, mask=mask, other=0.0)
    out_gradient = tl.load(out_gradient_ptr + offsets, mask=mask, other=0.0)
    out = tl.load(out_ptr + offsets, mask=mask, other=0.0)
    log_total = tl.load(log_total_ptr + head + query, mask=query < length, other=0.0)
    delta = tl.sum(out_gradient.to(tl.float32) * out.to(tl.float32), axis=1)
    accumulator = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        key = start + tl.arange(0, BLOCK)
        key_offsets = (head + key)[:, None] * WIDTH + feature[None, :]
        k = tl.load(k_ptr + key_offsets, mask=(key < length)[:, None], other=0.0)
        v = tl.load(v_ptr + key_offsets, mask=(key < length)[:, None], other=0.0)
        _, score_gradient = weights_and_score_gradient(
            q, k, v, out_gradient, log_total, delta, query, key, length, scale
        )
        accumulator = tl.dot(score_gradient.to(k.dtype), k, accumulator)
    tl.store(q_gradient_ptr + offsets, accumulator * scale, mask=mask)


@triton.jit
def key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, out_gradient_ptr, out_ptr, log_total_ptr, k_gradient_ptr, v_gradient_ptr, length, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * length
    key = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    feature = tl.arange(0, WIDTH)
    key_offsets = (head + key)[:, None] * WIDTH + feature[None, :]
    key_mask = (key < length)[:, None]
    k = tl.load(k_ptr + key_offsets, mask=key_mask, other=0.0)
    v = tl.load(v_ptr + key_offsets, mask=key_mask, other=0.0)
    k_accumulator = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    v_accumulator = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        query = start + tl.arange(0, BLOCK)
        offsets = (head + query)[:, None] * WIDTH + feature[None, :]
        mask = (query < length)[:, None]
        q = tl.load(q_ptr + offsets, mask=mask, other=0.0)
        out_gradient = tl.load(out_gradient_ptr + offsets, mask=mask, other=0.0)
        out = tl.load(out_ptr + offsets, mask=mask, other=0.0)
        log_total = tl.load(log_total_ptr + head + query, mask=query < length, other=0.0)
        delta = tl.sum(out_gradient.to(tl.float32) * out.to(tl.float32), axis=1)
        weights, score_gradient = weights_and_score_gradient(
            q, k, v, out_gradient, log_total, delta, query, key, length, scale
        )
        v_accumulator = tl.dot(weights.to(v.dtype), out_gradient, v_accumulator)
        k_accumulator = tl.dot(tl.trans(score_gradient.to(q.dtype)), q, k_accumulator)
    tl.store(k_gradient_ptr + key_offsets, k_accumulator * scale, mask=key_mask)
    tl.store(v_gradient_ptr + key_offsets, v_accumulator, mask=key_mask)


def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    log_total: torch.Tensor,
    out_gradient: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v. The forward stored log_total[head, query] = log Σ exp(scores)."""
    heads, length, width = q.shape
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    grid = (triton.cdiv(length, BLOCK), heads)
    known = (q, k, v, out_gradient, out, log_total)
    query_gradient_kernel[grid](*known, gradients[0], length, width**-0.5, WIDTH=width, BLOCK=BLOCK)
    key_gradient_kernel[grid](*known, *gradients[1:], length, width**-0.5, WIDTH=width, BLOCK=BLOCK)
    return gradients
