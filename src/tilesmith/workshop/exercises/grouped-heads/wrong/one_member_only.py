# fails: runs (not written by any program)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 32


@triton.jit
def grouped_scores_kernel(
    q_ptr,
    k_ptr,
    out_ptr,
    keys,
    group,
    q_head_stride,
    k_head_stride,
    k_key_stride,
    out_head_stride,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    k_head = tl.program_id(0)
    key = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    lane = tl.arange(0, WIDTH)
    mask = key < keys
    k = tl.load(
        k_ptr + k_head * k_head_stride + key[:, None] * k_key_stride + lane[None, :], mask=mask[:, None], other=0.0
    )
    for member in range(1):
        head = k_head * group + member
        q = tl.load(q_ptr + head * q_head_stride + lane)
        scores = tl.sum(k * q[None, :], axis=1)
        tl.store(out_ptr + head * out_head_stride + key, scores, mask=mask)


def grouped_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return q · k for every head of q (heads, width) and every key of k (keys, key heads, width)."""
    heads, width = q.shape
    keys, key_heads, _ = k.shape
    out = torch.empty((heads, keys), dtype=q.dtype, device=q.device)
    grouped_scores_kernel[(key_heads, triton.cdiv(keys, BLOCK_SIZE))](
        q,
        k,
        out,
        keys,
        heads // key_heads,
        q.stride(0),
        k.stride(1),
        k.stride(0),
        out.stride(0),
        WIDTH=width,
        BLOCK_SIZE=BLOCK_SIZE,
    )
    return out
