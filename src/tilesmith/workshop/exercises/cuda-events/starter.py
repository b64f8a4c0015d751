from statistics import median

import torch

WARM_UP = 3


def time_ms(work, runs=20):
    """Return the median time of work() on the GPU, in milliseconds."""
    for _ in range(WARM_UP):
        work()
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(runs)]
    ends = ...  # one event for the end of each run
    for run in range(runs):
        work()  # TODO: record one event before and one after
    # TODO: wait for the GPU
    return median(...)  # the time from each start to its end


if __name__ == "__main__" and torch.cuda.is_available():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    print(f"{time_ms(lambda: a @ a):.3f} ms")
