# grouped order, autotuned by the target's configurations
import torch
import triton
import triton.language as tl


def is_cuda():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"


def configurations():
    if is_cuda():
        return [
            triton.Config({"BM": 16, "BN": 16, "BK": 16, "GROUP": 8}, num_stages=3, num_warps=4),
            triton.Config({"BM": 32, "BN": 16, "BK": 32, "GROUP": 8}, num_stages=4, num_warps=4),
        ]
    return [triton.Config({"BM": 16, "BN": 16, "BK": 16, "GROUP": 1, "waves_per_eu": 2}, num_warps=4)]


@triton.autotune(configs=configurations(), key=["M", "N", "K"])
@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    sam,
    sak,
    sbk,
    sbn,
    scm,
    scn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * tiles_n
    group = pid // in_group
    first = group * GROUP
    size = min(tiles_m - first, GROUP)
    pid_m = first + ((pid % in_group) % size)
    pid_n = (pid % in_group) // size
    tl.assume(pid_m >= 0)
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    cols = (pid_n * BN + tl.arange(0, BN)) % N
    depth = tl.arange(0, BK)
    a_ptrs = a_ptr + (rows[:, None] * sam + depth[None, :] * sak)
    b_ptrs = b_ptr + (depth[:, None] * sbk + cols[None, :] * sbn)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=depth[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < K - k * BK, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_ptrs += BK * sak
        b_ptrs += BK * sbk
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    rows = pid_m * BM + tl.arange(0, BM)
    cols = pid_n * BN + tl.arange(0, BN)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptr + scm * rows[:, None] + scn * cols[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


def matmul(a, b, activation=""):
    assert a.shape[1] == b.shape[0], "Incompatible dimensions"
    assert a.is_contiguous(), "Matrix A must be contiguous"
    M, K = a.shape
    K, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda META: (triton.cdiv(M, META["BM"]) * triton.cdiv(N, META["BN"]),)
    matmul_kernel[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        a.stride(0),
        a.stride(1),
        b.stride(0),
        b.stride(1),
        c.stride(0),
        c.stride(1),
        ACTIVATION=activation,
    )
    return c
