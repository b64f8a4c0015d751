import time

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

VOCABULARY, WIDTH, EPS = 50, 16, 1e-6


@triton.jit
def norm_kernel(
    x_ptr, weight_ptr, y_ptr, columns, x_row_stride, x_column_stride, EPS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + EPS)
    tl.store(y_ptr + row * columns + column, x * scale * weight, mask=inside)


def rms_norm(x, weight):
    """Return the RMSNorm of a matrix's rows; the matrix may have any strides."""
    rows, columns = x.shape
    y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    norm_kernel[(rows,)](x, weight, y, columns, *x.stride(), EPS=EPS, BLOCK=triton.next_power_of_2(columns))
    return y


class Model(nn.Module):
    """A language model of one layer: the next word from this word."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.hidden = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for part in (self.embedding, self.hidden, self.head):
            nn.init.normal_(part.weight, std=1.0)

    def forward(self, tokens):  # (batch, length) to (batch, length, VOCABULARY)
        x = self.embedding(tokens).flatten(0, 1)
        x = x + torch.tanh(self.hidden(rms_norm(x, self.norm)))
        return self.head(rms_norm(x, self.norm)).unflatten(0, tokens.shape)


def loss(model, tokens):
    """Return the mean cross-entropy of every word but the first, each predicted from the word before it."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = model(inputs)[:, :-1]
    targets = targets[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def time_ms(work):
    """Return the milliseconds that work() takes on the GPU."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)
