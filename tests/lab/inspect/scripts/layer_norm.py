# mypy: ignore-errors
"""LayerNorm with its gradient: rows in parallel, locks around the shared partial sums."""

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm_forward(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    y_ptr += row * stride
    x_ptr += row * stride
    total = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for start in range(0, N, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        total += tl.load(x_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for start in range(0, N, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
        x = tl.where(columns < N, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, N, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        mask = columns < N
        w = tl.load(w_ptr + columns, mask=mask)
        b = tl.load(b_ptr + columns, mask=mask)
        x = tl.load(x_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + columns, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_backward(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, lock_ptr, stride, N,
    GROUP_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK_SIZE_N)
    mask = columns < N
    lock_id = row % GROUP_SIZE_M
    count_ptr = lock_ptr + GROUP_SIZE_M + lock_id
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + row * stride + columns, mask=mask, other=0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=mask).to(tl.float32)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    tl.store(dx_ptr + row * stride + columns, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    partial_dw = (dy * xhat).to(w.dtype)
    partial_db = dy.to(w.dtype)
    dw_place = dw_ptr + lock_id * N + columns
    db_place = db_ptr + lock_id * N + columns
    while tl.atomic_cas(lock_ptr + lock_id, 0, 1) == 1:
        pass
    count = tl.load(count_ptr)
    if count == 0:
        tl.atomic_xchg(count_ptr, 1)
    else:
        partial_dw += tl.load(dw_place, mask=mask)
        partial_db += tl.load(db_place, mask=mask)
    tl.store(dw_place, partial_dw, mask=mask)
    tl.store(db_place, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr + lock_id, 0)


@triton.jit
def layer_norm_sum(dw_ptr, db_ptr, final_dw_ptr, final_db_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dw = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    db = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        mask = (rows[:, None] < M) & (columns[None, :] < N)
        places = rows[:, None] * N + columns[None, :]
        dw += tl.load(dw_ptr + places, mask=mask, other=0.0)
        db += tl.load(db_ptr + places, mask=mask, other=0.0)
    tl.store(final_dw_ptr + columns, tl.sum(dw, axis=0), mask=columns < N)
    tl.store(final_db_ptr + columns, tl.sum(db, axis=0), mask=columns < N)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y = torch.empty_like(x)
        M, N = x.reshape(-1, x.shape[-1]).shape
        mean = torch.empty((M,), dtype=torch.float32, device=x.device)
        rstd = torch.empty((M,), dtype=torch.float32, device=x.device)
        block = min(65536 // x.element_size(), triton.next_power_of_2(N))
        layer_norm_forward[(M,)](x, y, weight, bias, mean, rstd, x.stride(0), N, eps, BLOCK_SIZE=block, num_warps=4)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.block, ctx.eps = block, eps
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, mean, rstd = ctx.saved_tensors
        M, N = x.shape
        group = 8
        locks = torch.zeros(2 * group, dtype=torch.int32, device=w.device)
        partial_dw = torch.zeros((group, N), dtype=x.dtype, device=w.device)
        partial_db = torch.zeros((group, N), dtype=x.dtype, device=w.device)
        dw, db = torch.empty((N,), dtype=w.dtype, device=w.device), torch.empty((N,), dtype=w.dtype, device=w.device)
        dx = torch.empty_like(dy)
        layer_norm_backward[(M,)](
            dx, dy, partial_dw, partial_db, x, w, mean, rstd, locks, x.stride(0), N, BLOCK_SIZE_N=ctx.block,
            GROUP_SIZE_M=group, num_warps=4,
        )  # fmt: skip
        layer_norm_sum[lambda meta: (triton.cdiv(N, meta["BLOCK_N"]),)](
            partial_dw, partial_db, dw, db, min(group, M), N, BLOCK_M=32, BLOCK_N=128
        )
        return dx, dw, db, None


x = torch.randn(24, 512, device="cuda", requires_grad=True)
weight = torch.rand(512, device="cuda", requires_grad=True)
bias = torch.rand(512, device="cuda", requires_grad=True)
dy = 0.1 * torch.randn_like(x)
y = LayerNorm.apply(x, weight, bias, 1e-5)
y.backward(dy, retain_graph=True)
ours = [each.grad.clone() for each in (x, weight, bias)]
x.grad, weight.grad, bias.grad = None, None, None
expected = torch.nn.functional.layer_norm(x, (512,), weight, bias, 1e-5)
expected.backward(dy, retain_graph=True)
torch.testing.assert_close(y, expected, atol=1e-4, rtol=0)
for got, wanted in zip(ours, (x.grad, weight.grad, bias.grad), strict=True):
    torch.testing.assert_close(got, wanted, atol=1e-3, rtol=0)
