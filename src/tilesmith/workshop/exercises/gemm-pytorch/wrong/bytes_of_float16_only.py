# fails: right (of the result)
from typing import NamedTuple

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [(n, n, n) for n in (256, 512, 1024, 2048)] + [(1, 2048, 2048), (2048, 64, 2048)]


class Machine(NamedTuple):
    """What the machine can do: operations and bytes per second."""

    flops: float
    bandwidth: float


class Row(NamedTuple):
    """One line of the table: the sizes, TFLOP/s, the share of the roof, and what limits this product."""

    sizes: tuple[int, int, int]
    tflops: float
    share: float
    bound: str  # "memory" or "compute"


def sweep(sizes, machine, time_ms, dtype=torch.float16):
    """Measure PyTorch's product at every size (m, n, k), and place it under the roofline."""
    return [measure(*one, machine, time_ms, dtype) for one in sizes]


def measure(m, n, k, machine, time_ms, dtype):
    a = torch.randn(m, k, device=DEVICE).to(dtype)
    b = torch.randn(k, n, device=DEVICE).to(dtype)
    seconds = time_ms(lambda: torch.mm(a, b)) / 1000
    operations = 2 * m * n * k
    moved = (m * k + k * n + m * n) * 2
    by_compute, by_memory = operations / machine.flops, moved / machine.bandwidth
    roof = max(by_compute, by_memory)
    bound = "memory" if by_memory > by_compute else "compute"
    return Row((m, n, k), operations / seconds / 1e12, roof / seconds, bound)


def main():
    import triton

    table = sweep(SIZES, Machine(989e12, 4.8e12), triton.testing.do_bench)
    for row in table:
        print(f"{row.sizes!s:20} {row.tflops:8.1f} TFLOP/s  {row.share:5.1%} of the roof, bound by {row.bound}")


if __name__ == "__main__" and DEVICE == "cuda":
    main()
