# fails: right (one pair of events around all runs)
import torch

WARM_UP = 3


def time_ms(work, runs=20):
    """Return the median time of work() on the GPU, in milliseconds."""
    for _ in range(WARM_UP):
        work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(runs):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / runs


if __name__ == "__main__" and torch.cuda.is_available():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    print(f"{time_ms(lambda: a @ a):.3f} ms")
