"""The sweep runs with a machine and times that the check chooses; the products themselves are watched."""

import random

import torch
from torch.overrides import TorchFunctionMode

from tilesmith.workshop.checking.program_check import Wrong

SIZES = [(64, 64, 64), (1, 64, 128), (96, 32, 16), (128, 128, 512), tuple(random.choices(range(8, 200), k=3))]
PRODUCTS = {"mm", "matmul", "__matmul__", "linear", "addmm"}
FLOPS, BANDWIDTH = 4e12 * random.uniform(0.9, 1.1), 1e12 * random.uniform(0.9, 1.1)


class Watch(TorchFunctionMode):
    """Notes the sizes of every product, and what else is computed."""

    def __init__(self):
        super().__init__()
        self.products, self.others = [], []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in PRODUCTS:
            self.products.append((args[0].shape[0], args[1].shape[1], args[0].shape[1], args[0].dtype))
        elif function.__name__ != "__get__":
            self.others.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Timer:
    """Calls the work once and returns a time that depends on its place in the sweep."""

    def __init__(self):
        self.products, self.others, self.times = [], [], []

    def __call__(self, work, **options):
        with Watch() as watch:
            work()
        self.products.append(watch.products)
        self.others += watch.others
        self.times.append(0.001 * (len(self.times) + 2) ** 2 * random.uniform(0.5, 2))
        return self.times[-1]


def check_sweep(program):
    for dtype in (torch.float16, torch.float32):
        timer = Timer()
        rows = program.sweep(SIZES, program.Machine(FLOPS, BANDWIDTH), timer, dtype)
        name = str(dtype).removeprefix("torch.")
        if not isinstance(rows, list | tuple) or len(rows) != len(SIZES) or len(timer.times) != len(SIZES):
            raise Wrong(
                f"sweep returns {rows!r}, but one Row for each of {len(SIZES)} sizes is wanted, each timed once."
            )
        if timer.others:
            raise Wrong(
                f"the timed function also calls {timer.others[0]}: make and cast the operands before, and "
                "time the product alone."
            )
        for sizes, row, products, milliseconds in zip(SIZES, rows, timer.products, timer.times, strict=True):
            require_product(sizes, products, dtype)
            require_row(sizes, row, milliseconds / 1000, dtype.itemsize, name)


def require_product(sizes, products, dtype):
    if len(products) != 1:
        raise Wrong(f"the timed function of size {sizes} computes {len(products)} products, but one is wanted.")
    m, n, k, used = products[0]
    if (m, n, k) != sizes:
        raise Wrong(
            f"size (m, n, k) = {sizes}: the timed product is {m}×{k} times {k}×{n}, but m×k times k×n is wanted."
        )
    if used != dtype:
        raise Wrong(f"the timed product is in {used}, but {dtype} was asked for.")


def require_row(sizes, row, seconds, element_bytes, name):
    m, n, k = sizes
    operations, moved = 2 * m * n * k, (m * k + k * n + m * n) * element_bytes
    wanted = {
        "tflops": operations / seconds / 1e12,
        "share": max(operations / FLOPS, moved / BANDWIDTH) / seconds,
    }
    for what, value in wanted.items():
        found = float(getattr(row, what))
        if abs(found / value - 1) > 1e-6:
            raise Wrong(
                f"size {sizes} in {name}, {seconds * 1000:g} ms: {what} is {found:.4g}, but {value:.4g} is "
                f"wanted.\n{lesson(what, found / value)}"
            )
    bound = "memory" if moved / BANDWIDTH > operations / FLOPS else "compute"
    if row.bound != bound:
        raise Wrong(
            f"size {sizes} in {name} is bound by {bound}, not by {row.bound}: its operations take "
            f"{operations / FLOPS * 1e9:.3g} ns, its bytes {moved / BANDWIDTH * 1e9:.3g} ns."
        )


def lesson(what, factor):
    if what == "tflops":
        if abs(factor - 0.5) < 1e-6:
            return "Each of the m·n·k pairs needs a multiplication and an addition: 2 operations."
        return "TFLOP/s are operations / seconds / 1e12. do_bench gives milliseconds."
    return (
        "The roof is the longer of two times: operations / flops, and the bytes of both operands and of the result / "
        "bandwidth."
    )
