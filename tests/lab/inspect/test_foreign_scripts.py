"""Ways in which other people's scripts reach their kernels."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import planted
import pytest
import torch
import triton
import triton.language as tl
from reading import HOPPER, kinds, only
from test_scripts import KERNEL, run
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.lab.inspect import inspect, watching
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.running import tensor_tracker
from tilesmith.lab.inspect.running.half_precision import write_product
from tilesmith.lab.inspect.running.spawned_processes import SpawnedProcesses
from tilesmith.lab.inspect.session import Session


@gluon.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def gluon_copy(x_ptr, y_ptr, BLOCK: gl.constexpr):  # type: ignore[no-untyped-def]  # Triton ships no types
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    places = gl.arange(0, BLOCK, layout=layout)
    gl.store(y_ptr + places, gl.load(x_ptr + places))


@gluon.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def gluon_reversed(x_ptr, y_ptr, BLOCK: gl.constexpr):  # type: ignore[no-untyped-def]  # Triton ships no types
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    places = gl.arange(0, BLOCK, layout=layout)
    x = gl.load(x_ptr + places)
    reverse = gl.inline_asm_elementwise("brev.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1)
    gl.store(y_ptr + places, reverse)


def test_gluon_kernel_is_traced_and_compiled() -> None:
    def program() -> None:
        x, y = torch.ones(64, device="cuda"), torch.empty(64, device="cuda")
        gluon_copy[(1,)](x, y, BLOCK=64)
        assert torch.equal(x, y)

    found = inspect(program, targets=HOPPER)
    assert not found.has_errors
    assert {access.argument for access in found.kernels[0].accesses} == {"x_ptr", "y_ptr"}
    assert found.kernels[0].targets["cuda:90"].registers > 0


def test_gluon_kernel_out_of_bounds_is_found_at_its_line() -> None:
    def program() -> None:
        gluon_copy[(1,)](torch.ones(100, device="cuda"), torch.empty(128, device="cuda"), BLOCK=128)

    finding = only(inspect(program, targets=HOPPER), "out-of-bounds")
    assert finding.line == gluon_copy.fn.__code__.co_firstlineno + 4


def test_unknown_operation_of_gluon_is_named_and_the_kernel_compiled() -> None:
    def program() -> None:
        x = torch.ones(64, device="cuda", dtype=torch.int32)
        y = torch.empty(64, device="cuda", dtype=torch.int32)
        for _ in range(2):
            gluon_reversed[(1,)](x, y, BLOCK=64)
            y.sum()

    found = inspect(program, targets=HOPPER)
    assert only(found, "not-interpreted").message.startswith(
        "the interpreter does not know brev.b32 in inline assembly"
    )
    assert not found.has_errors
    assert found.kernels[0].targets["cuda:90"].registers > 0


def test_an_operator_for_cuda_only_is_called_on_the_pretended_gpu() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape, device="cuda", dtype=x.dtype)
        planted.copy[(4,)](x, y, x.numel(), BLOCK=256)
        return y

    def program() -> None:
        operator = torch.library.custom_op(
            "tilesmith_test::copied", double, mutates_args=(), device_types="cuda",
            schema="(Tensor x) -> Tensor",
        )  # fmt: skip
        x = torch.randn(1000, device="cuda")
        y = operator(x)
        assert y.is_cuda
        assert torch.equal(x, y)

    assert [kernel.name for kernel in inspect(program, targets=HOPPER).kernels] == ["copy"]


def test_launches_of_threads_are_seen() -> None:
    def work() -> None:
        x, y = torch.ones(512, device="cuda"), torch.empty(512, device="cuda")
        planted.copy[(2,)](x, y, 512, BLOCK=256)
        assert y.is_cuda
        sums.append(y.sum().item())

    def program() -> None:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    sums: list[float] = []
    (kernel,) = inspect(program, targets=HOPPER).kernels
    assert kernel.launches == 2
    assert sums == [512.0, 512.0]


def test_a_pre_hook_sets_the_block_before_compiling() -> None:
    def set_block(arguments: dict[str, object]) -> None:
        arguments["x"].block_shape = [arguments["BLOCK"]]  # type: ignore[attr-defined]

    configs = [triton.Config({"BLOCK": 64}, pre_hook=set_block), triton.Config({"BLOCK": 128}, pre_hook=set_block)]
    tuned = triton.autotune(configs, key=[])(planted.descriptor_copy)
    x, y = torch.ones(256, device="cpu"), torch.zeros(256)
    found = inspect(
        lambda: tuned[lambda meta: (256 // meta["BLOCK"],)](TensorDescriptor(x, [256], [1], [1]), y), targets=HOPPER
    )
    assert not found.has_errors, [one.message for one in found.findings]
    assert torch.equal(x, y)


def test_a_benchmark_computes_no_results() -> None:
    def program() -> None:
        x, y = torch.ones(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")
        assert triton.testing.do_bench(lambda: planted.copy[(1 << 14,)](x, y, 1 << 20, BLOCK=64)) != 0.0
        launched.append(y.count_nonzero().item())

    launched: list[float] = []
    (kernel,) = inspect(program, targets=HOPPER, programs=4).kernels
    assert kernel.programs_traced < kernel.programs
    assert launched[0] < 1 << 20


def test_a_benchmark_computes_no_results_of_launches_that_are_not_shown() -> None:
    def timed(blocks: int) -> int:
        size = 64 * 64 * blocks
        x, y = torch.ones(size, device="cuda"), torch.zeros(size, device="cuda")
        triton.testing.do_bench(lambda: planted.copy[(64 * blocks,)](x, y, size, BLOCK=64))
        return int(y.count_nonzero())

    computed: list[int] = []
    found = inspect(lambda: computed.extend(map(timed, range(1, 9))), targets=HOPPER, programs=1)
    assert len(found.kernels) < 8
    assert computed[-1] == 0


def test_a_half_precision_sum_is_rounded_once() -> None:
    def program() -> None:
        x = torch.full((1, 1 << 15), 0.1, device="cuda", dtype=torch.float16)
        sums.append((x @ x.T).item())
        planted.copy[(1,)](x, torch.empty_like(x), 16, BLOCK=16)

    sums: list[float] = []
    inspect(program, targets=HOPPER)
    assert sums[0] == pytest.approx(327.5, rel=1e-3)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A list that grows by the shape of each product that the host computes late."""
    computed: list[tuple[int, ...]] = []

    def counted(output: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        computed.append(tuple(output.shape))
        write_product(output, left, right)

    monkeypatch.setattr(tensor_tracker, "write_product", counted)
    return computed


def test_a_loop_computes_no_products_that_nobody_reads(products: list[tuple[int, ...]]) -> None:
    def program() -> None:
        a, b = torch.randn(5, 3, device="cuda"), torch.randn(3, 4, device="cuda")
        out = torch.empty(5, 4, device="cuda")
        for _ in range(100):
            product = torch.matmul(a, b)
            torch.mm(a, b, out=out)
        assert not products
        product += 1
        assert torch.allclose(product, (a[:, :, None] * b).sum(1) + 1, atol=1e-5)
        assert torch.allclose(out + 1, product, atol=1e-5)

    inspect(program, targets=HOPPER)
    assert 0 < len(products) < 100


def test_a_product_that_waits_sees_its_inputs_as_they_were(products: list[tuple[int, ...]]) -> None:
    def program() -> None:
        a, b = torch.ones(2, 3, device="cuda"), torch.ones(3, 2, device="cuda")
        product = a @ b
        chained = product @ b.T
        assert not products
        a.mul_(2)
        sums.extend([product.sum().item(), chained.sum().item()])
        copied = torch.empty_like(a)
        planted.copy[(1,)](a, copied, a.numel(), BLOCK=8)
        later = copied @ b
        planted.copy[(1,)](torch.zeros_like(b), b, b.numel(), BLOCK=8)  # the product still has the ones
        sums.append(later.sum().item())
        weight = torch.ones(3, 2, device="cuda", requires_grad=True)
        (gradient,) = torch.autograd.grad((a @ weight).sum(), weight)
        sums.append(gradient.sum().item())

    sums: list[float] = []
    inspect(program, targets=HOPPER)
    assert sums == [12.0, 36.0, 24.0, 24.0]


@pytest.mark.parametrize(("seconds", "traced"), [(3.0, 64), (0.0, 2)])
def test_slow_programs_are_sampled_by_time(seconds: float, traced: int) -> None:
    session = Session(InspectOptions(targets=(), seconds=seconds), has_gpu=False)
    with watching(session):
        x, y = torch.ones(64 * 64, device="cuda"), torch.empty(64 * 64, device="cuda")
        planted.copy[(64,)](x, y, 64 * 64, BLOCK=64)
        right = torch.equal(x, y)
    (kernel,) = session.kernels
    assert kernel.programs_traced == traced
    assert right, "the others run when the result is read"


@pytest.mark.slow
def test_processes_that_a_script_starts_are_inspected(tmp_path: Path) -> None:
    text = KERNEL + (
        "import os, subprocess\nimport torch.multiprocessing as processes\n"
        "def work(rank): assert double(torch.ones(1000, device='cuda')).sum() == 2000\n"
        "if __name__ == '__main__':\n"
        "    if len(sys.argv) > 1: work(0); sys.exit()\n"
        "    processes.spawn(work, nprocs=1)\n"
        "    child = os.fork()\n"
        "    if child == 0: work(0); os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    subprocess.run([sys.executable, __file__, 'again'], check=True)\n"
    )
    found = run(tmp_path, text)
    assert found.ending.kind == "finished", found.ending.traceback
    assert [kernel.name for kernel in found.kernels] == ["double_kernel"]


def test_programs_that_wait_for_earlier_ones_are_traced_in_order() -> None:
    session = Session(InspectOptions(targets=(), seconds=0.0, suspects=False), has_gpu=False)
    with watching(session):
        x, y = torch.ones(64 * 16, device="cuda"), torch.empty(64 * 16, device="cuda")
        planted.looks_back[(64,)](x, y, torch.zeros(65, device="cuda"), torch.zeros(65, device="cuda").int(), BLOCK=16)
        assert y.tolist() == x.cumsum(0).tolist()
    (kernel,) = session.kernels
    assert not kernel.errors
    assert kernel.sampled == "2 of 64 programs (the first ones, since later ones may wait for them)"


def test_kernel_of_two_processes_with_other_addresses_is_shown_once() -> None:
    x, y = torch.ones(1024), torch.empty(1024)
    (kernel,) = inspect(lambda: planted.column_walk[(1,)](x, y, 32, 32, BLOCK=1024), targets=HOPPER).kernels
    spawned = SpawnedProcesses(InspectOptions())
    for number, alignment in enumerate((16, 64, 256, 8)):
        arguments = tuple(replace(one, alignment=alignment) for one in kernel.arguments)
        spawned._found[number, 0] = replace(kernel, arguments=arguments)
    assert [one.arguments[0].alignment for one in spawned.kernels()] == [16, 8]


def test_the_first_reason_of_the_compiler_is_named() -> None:
    found = inspect(lambda: planted.type_changes[(1,)](torch.zeros(1), 3), targets=HOPPER)
    message = only(found, "compile-error").message
    assert "^" not in message
    assert "total" in message
    assert "compile-error" in kinds(found)


def plain_helper(x: Any) -> Any:
    return x * 2


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def calls_a_plain_function(x_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, SIZE)
    tl.store(x_ptr + offsets, plain_helper(tl.load(x_ptr + offsets)))


def test_a_helper_without_jit_is_one_error_at_its_line() -> None:
    found = inspect(lambda: calls_a_plain_function[(1,)](torch.zeros(16), SIZE=16), targets=HOPPER)
    (error,) = (one for one in found.findings if one.severity == "error")
    assert "plain_helper has no @triton.jit" in error.message
    assert error.code == "tl.store(x_ptr + offsets, plain_helper(tl.load(x_ptr + offsets)))"
    assert "Put @triton.jit above" in error.advice


def test_a_report_computes_no_results_that_only_its_benchmark_reads() -> None:
    x, y = torch.ones(256 * 64), torch.zeros(256 * 64)
    report = triton.testing.Benchmark(
        x_names=["n"], x_vals=[256 * 64], line_arg="line", line_vals=["a"], line_names=["a"], plot_name="p", args={}
    )

    @triton.testing.perf_report(report)  # type: ignore[untyped-decorator]  # Triton ships no types
    def timed(n: int, line: str) -> float:
        planted.copy[(64,)](x, y, n, BLOCK=256)  # prepares what the benchmark reads
        z = torch.empty_like(y)
        return float(triton.testing.do_bench(lambda: planted.copy[(64,)](y, z, n, BLOCK=256)))

    found = inspect(lambda: timed.run(), targets=HOPPER, programs=4)
    assert [kernel.launches for kernel in found.kernels] == [2]
    assert 0 < y.count_nonzero() < y.numel()


def test_an_operator_may_have_a_kernel_for_the_host_and_one_for_cuda() -> None:
    chosen: list[str] = []

    def marked(key: str, x: torch.Tensor) -> torch.Tensor:
        chosen.append(key)
        return x.clone()

    def program() -> None:
        make: Any = torch.library.Library  # PyTorch leaves it without types
        library = make("tilesmith_test_both", "DEF")
        library.define("marked(Tensor x) -> Tensor")
        for key in ("CPU", "CUDA"):
            library.impl("marked", partial(marked, key), key)
        torch.ops.tilesmith_test_both.marked(torch.ones(4))
        torch.ops.tilesmith_test_both.marked(torch.ones(4, device="cuda"))
        library._destroy()

    inspect(program, targets=HOPPER)
    assert chosen == ["CPU", "CUDA"]


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _copied(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _copied(gradients[0])


def _copied(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    planted.copy[(x.numel() // 16,)](x, y, x.numel(), BLOCK=16)
    return y


def test_gradient_of_untraced_programs_is_whole_where_autograd_adds_it() -> None:
    def program() -> None:
        x = torch.ones(600, 16, device="cuda", requires_grad=True)
        gradient = torch.randn_like(x)
        torch.autograd.backward(_Copied.apply(x) + _Copied.apply(x), gradient)  # type: ignore[no-untyped-call]
        assert x.grad is not None
        torch.testing.assert_close(x.grad, 2 * gradient)

    assert not inspect(program, targets=HOPPER, programs=4).has_errors


def test_rejected_kernel_is_one_error() -> None:
    def program() -> None:
        planted.not_a_shape[(1,)](torch.ones(16, device="cuda"))

    found = inspect(program, targets=HOPPER)
    assert [one.kind for one in found.findings if one.severity == "error"] == ["compile-error"]


def test_replay_of_a_cuda_graph_computes_again() -> None:
    def program() -> None:
        x = torch.ones(6, 16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            doubled = x * 2
            copied = _copied(doubled)
            copied += 1
            total = copied.sum(0)
        assert torch.equal(copied, torch.full_like(x, 3.0))
        x.fill_(5.0)
        graph.replay()
        assert torch.equal(copied, torch.full_like(x, 11.0))
        assert torch.equal(total, torch.full((16,), 66.0, device="cuda"))

    found = inspect(program, targets=HOPPER)
    assert not found.has_errors
    assert found.kernels[0].launches == 2


def test_graphed_callables_are_called() -> None:
    def program() -> None:
        x = torch.randn(2, 16, device="cuda")
        graphed = torch.cuda.make_graphed_callables(_copied, (torch.empty_like(x),))
        found: Any = graphed(x)
        assert torch.equal(found, x)

    assert not inspect(program, targets=HOPPER).has_errors
