# fails: right (a short time is a high rate)
import torch
import torch.nn.functional as F
import triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = 4096 if DEVICE == "cuda" else 16


def by_hand(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["columns"],
        x_vals=[256, 512, 1024, 2048, 4096, 8192],
        line_arg="provider",
        line_vals=["torch", "by hand"],
        line_names=["F.rms_norm", "five operations"],
        plot_name="rms-norm",
        ylabel="GB/s",
        x_log=True,
        args={},
    )
)
def benchmark(columns, provider):
    x = torch.randn(ROWS, columns, device=DEVICE)
    weight = torch.randn(columns, device=DEVICE)
    if provider == "torch":
        work = lambda: F.rms_norm(x, (columns,), weight, eps=1e-6)  # noqa: E731
    else:
        work = lambda: by_hand(x, weight)  # noqa: E731
    median, fast, slow = triton.testing.do_bench(work, quantiles=[0.5, 0.2, 0.8])

    def rate(milliseconds):
        return 2 * x.numel() * x.element_size() / (milliseconds / 1000) / 1e9

    return rate(median), rate(fast), rate(slow)


if __name__ == "__main__" and DEVICE == "cuda":
    benchmark.run(print_data=True, save_path=".")
