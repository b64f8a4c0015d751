# fails: right (before the work was done)
import time
from statistics import median

import torch

WARM_UP = 3


def time_ms(work, runs=20):
    """Return the median time of work() on the GPU, in milliseconds."""
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


if __name__ == "__main__" and torch.cuda.is_available():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    print(f"{time_ms(lambda: a @ a):.3f} ms")
