# mypy: ignore-errors
"""Add two vectors and time it, as Triton's first tutorial does."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def add_kernel(x_ptr, y_ptr, output_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    block_start = pid * BLOCK_SIZE
    offsets = block_start + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, x + y, mask=mask)


def add(x, y):
    output = torch.empty_like(x)
    assert x.device == y.device == output.device == DEVICE
    n_elements = output.numel()
    add_kernel[lambda meta: (triton.cdiv(n_elements, meta["BLOCK_SIZE"]),)](x, y, output, n_elements, BLOCK_SIZE=1024)
    return output


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["size"], x_vals=[2**power for power in range(12, 28)], x_log=True, line_arg="provider",
        line_vals=["triton", "torch"], line_names=["Triton", "Torch"], plot_name="vector-add", args={},
    )
)  # fmt: skip
def benchmark(size, provider):
    x = torch.rand(size, device=DEVICE, dtype=torch.float32)
    y = torch.rand(size, device=DEVICE, dtype=torch.float32)
    function = {"triton": lambda: add(x, y), "torch": lambda: x + y}[provider]
    milliseconds, least, most = triton.testing.do_bench(function, quantiles=[0.5, 0.2, 0.8])
    return tuple(3 * x.numel() * x.element_size() * 1e-6 / each for each in (milliseconds, most, least))


torch.manual_seed(0)
x = torch.rand(98432, device=DEVICE)
y = torch.rand(98432, device=DEVICE)
assert torch.equal(add(x, y), x + y)
torch.cuda.synchronize()
benchmark.run(print_data=True, show_plots=True)
print("done on", x.device, torch.cuda.get_device_name())
