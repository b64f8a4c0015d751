# mypy: ignore-errors
"""Dropout that recomputes its mask from a seed."""

import torch
import triton
import triton.language as tl


@triton.jit
def seeded_dropout_kernel(x_ptr, output_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(output_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


def dropout(x, p, seed):
    output = torch.empty_like(x)
    assert x.is_contiguous()
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]),)  # noqa: E731  # the usual way to write a grid
    seeded_dropout_kernel[grid](x, output, x.numel(), p, seed, BLOCK_SIZE=1024)
    return output


x = torch.randn(size=(8192,), device="cuda")
first, second = dropout(x, p=0.5, seed=123), dropout(x, p=0.5, seed=123)
assert torch.equal(first, second)
assert not torch.equal(first, dropout(x, p=0.5, seed=512))
assert 0.45 < (first == 0).float().mean().item() < 0.55
