# fails: right (warm up with WARM_UP calls)
from statistics import median

import torch

WARM_UP = 3


def time_ms(work, runs=20):
    """Return the median time of work() on the GPU, in milliseconds."""
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(runs)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(runs)]
    for run in range(runs):
        starts[run].record()
        work()
        ends[run].record()
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in zip(starts, ends, strict=True))


if __name__ == "__main__" and torch.cuda.is_available():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    print(f"{time_ms(lambda: a @ a):.3f} ms")
