"""Dropout whose random numbers follow from a seed, and a reference in plain PyTorch that draws the same ones."""

import torch
import triton
import triton.language as tl

from tilesmith import Case, Spec

WORD = 0xFFFFFFFF


@triton.jit
def dropout_kernel(x_ptr, y_ptr, n_elements, probability, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    is_kept = tl.rand(seed, offsets) >= probability
    tl.store(y_ptr + offsets, tl.where(is_kept, x / (1 - probability), 0.0), mask=mask)


def launched(x, probability, seed):
    x = x.contiguous()
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 1024),)
    dropout_kernel[grid](x, y, x.numel(), probability, seed, BLOCK=1024)
    return y


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(context, x, probability, seed):
        context.probability, context.seed = probability, seed
        return launched(x, probability, seed)

    @staticmethod
    def backward(context, dy):
        return launched(dy, context.probability, context.seed), None, None  # the same seed: the same elements


def dropout(x, probability, seed):
    return Dropout.apply(x, probability, seed)


def triton_rand(seed, offsets):
    """Return what tl.rand(seed, offsets) returns for int32 offsets: Philox with ten rounds, as numbers in [0, 1)."""
    zeros = torch.zeros_like(offsets, dtype=torch.int64)
    c0, c1, c2, c3 = offsets.long() & WORD, zeros, zeros, zeros
    k0, k1 = seed & WORD, seed >> 32 & WORD
    for _ in range(10):
        (high0, low0), (high2, low2) = product(0xD2511F53, c0), product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return torch.minimum(c0, WORD - c0).to(torch.float32) * 4.6566127342e-10


def product(factor, values):
    """Return the high and the low word of a product of two 32-bit numbers, which may exceed int64."""
    low = factor * (values & 0xFFFF)
    high = (low >> 16) + factor * (values >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def reference(x, probability, seed):
    offsets = torch.arange(x.numel(), device=x.device).view(x.shape)
    is_kept = triton_rand(seed, offsets) >= probability
    return torch.where(is_kept, x / (1 - probability), 0.0)


def make_inputs(case, dtype, device):
    x = torch.randn(case.rows, case.columns, dtype=dtype, device=device)
    return {"x": x, "probability": 0.25, "seed": int(torch.randint(2**31, ()))}


SPEC = Spec(
    name="dropout",
    op=dropout,
    reference=reference,
    make_inputs=make_inputs,
    cases=[Case("one", rows=1, columns=1), Case("odd", rows=7, columns=333), Case("large", rows=8192, columns=8192)],
)
