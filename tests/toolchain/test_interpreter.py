"""The interpreter: when it runs, what it guards, what observers see, and how it reads kernels."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined"
# Kernels are Triton's language, not Python: their parameters have no Python types.

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language import load, store
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.toolchain.interpreter import (
    Access,
    Dot,
    KernelError,
    Observer,
    OutOfBounds,
    interpret,
    interpreting,
    is_interpreting,
)
from tilesmith.toolchain.interpreter.observing.positions import is_user_code
from tilesmith.toolchain.interpreter.program import ProgramBuilder
from tilesmith.toolchain.versions import triton_version

BLOCK = 64


@triton.jit
def scaled(x, factor):
    return x * factor


@triton.jit
def scale_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, scaled(x, 3.0), mask=mask)


def scale_arguments(size: int = 100) -> dict[str, Any]:
    return {"x_ptr": torch.randn(size), "y_ptr": torch.zeros(size), "n_elements": size, "BLOCK_SIZE": BLOCK}


def line_of(kernel: Any, text: str) -> int:
    """Return the line of this file where a kernel's source has this text."""
    lines, first = inspect.getsourcelines(kernel.fn)
    return next(first + index for index, line in enumerate(lines) if text in line)


class Recorder(Observer):
    def __init__(self) -> None:
        self.launches: list[tuple[str, tuple[int, int, int], list[str]]] = []
        self.accesses: list[Access] = []
        self.dots: list[Dot] = []

    def launch(self, kernel: Any, grid: tuple[int, int, int], arguments: Mapping[str, object]) -> None:
        self.launches.append((kernel.__name__, grid, list(arguments)))

    def load(self, access: Access) -> None:
        self.accesses.append(access)

    store = atomic = load

    def dot(self, dot: Dot) -> None:
        self.dots.append(dot)


# When it runs


def test_runs_launches_inside_the_context_and_leaves_everything_as_it_was() -> None:
    before = (JITFunction.run, JITFunction.__call__, Autotuner.run, dict(vars(tl)), dict(vars(tl.tensor)))
    arguments = scale_arguments()
    assert not is_interpreting()
    with interpreting():
        assert is_interpreting()
        scale_kernel[(2,)](**arguments)
    assert not is_interpreting()
    torch.testing.assert_close(arguments["y_ptr"], arguments["x_ptr"] * 3)
    assert before == (JITFunction.run, JITFunction.__call__, Autotuner.run, dict(vars(tl)), dict(vars(tl.tensor)))


def test_contexts_nest_and_restore_also_after_an_exception() -> None:
    run = JITFunction.run
    outer, inner = Recorder(), Recorder()
    with interpreting(outer):
        with pytest.raises(OutOfBounds), interpreting(inner):
            scale_kernel[(3,)](**{**scale_arguments(), "n_elements": 101})
        assert is_interpreting()
        scale_kernel[(2,)](**scale_arguments())
    assert JITFunction.run is run
    assert [len(recorder.launches) for recorder in (outer, inner)] == [2, 1]


def test_contexts_of_two_threads_may_end_in_any_order() -> None:
    inside, done = threading.Event(), threading.Event()

    recorder = Recorder()

    def other() -> None:
        with interpreting(recorder):
            inside.set()
            done.wait(200)

    run = JITFunction.run
    thread = threading.Thread(target=other)
    with interpreting():
        thread.start()
        inside.wait(200)
    scale_kernel[(2,)](**scale_arguments())
    assert len(recorder.launches) == 1
    done.set()
    thread.join()
    assert JITFunction.run is run


def compiled_for_hopper() -> str:
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n_elements": "i32", "BLOCK_SIZE": "constexpr"}
    source = ASTSource(fn=scale_kernel, signature=signature, constexprs={"BLOCK_SIZE": BLOCK})
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])


def test_compiling_works_before_inside_and_after() -> None:
    before = compiled_for_hopper()
    with interpreting():
        scale_kernel[(2,)](**scale_arguments())
        inside = compiled_for_hopper()
        scale_kernel[(2,)](**scale_arguments())
    assert "ld.global" in before
    assert before == inside == compiled_for_hopper()


def test_adds_nothing_to_the_kernels_module() -> None:
    before = set(globals())
    interpret(scale_kernel, (2,), scale_arguments())
    assert set(globals()) == before


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_SIZE": 32}, num_warps=2, pre_hook=lambda arguments: arguments["y_ptr"].fill_(-1)),
        triton.Config({"BLOCK_SIZE": 64}),
    ],
    key=["n_elements"],
)
@triton.jit
def tuned_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + BLOCK_SIZE, mask=mask)


def test_autotuned_kernels_run_their_first_configuration_and_its_hook() -> None:
    x, y = torch.randn(100), torch.zeros(120)
    with interpreting():
        tuned_kernel[lambda meta: (triton.cdiv(100, meta["BLOCK_SIZE"]),)](x, y, 100)
    torch.testing.assert_close(y[:100], x + 32)
    assert (y[100:] == -1).all()


@triton.heuristics({"EVEN": lambda arguments: arguments["n_elements"] % arguments["BLOCK_SIZE"] == 0})
@triton.jit
def heuristic_kernel(y_ptr, n_elements, BLOCK_SIZE: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    tl.store(y_ptr + offsets, tl.full([BLOCK_SIZE], 1 if EVEN else 2, tl.int32), mask=offsets < n_elements)


@pytest.mark.parametrize(("size", "expected"), [(16, 1), (15, 2)])
def test_heuristics_are_computed(size: int, expected: int) -> None:
    y = torch.zeros(size, dtype=torch.int32)
    with interpreting():
        heuristic_kernel[(1,)](y, size, BLOCK_SIZE=16)
    assert (y == expected).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs tensors on a GPU")
def test_tensors_on_a_gpu_are_copied_to_the_host_and_back() -> None:
    both = torch.randn(200, device="cuda")
    expected = both[:100] * 3
    with interpreting():
        scale_kernel[(2,)](both[:100], both[100:], 100, BLOCK_SIZE=BLOCK)
    torch.testing.assert_close(both[100:], expected)


SCRIPT = """
import torch
from tilesmith.toolchain.interpreter import OutOfBounds, interpret
from test_interpreter import scale_arguments, scale_kernel
arguments = scale_arguments()
interpret(scale_kernel, (2,), arguments)
torch.testing.assert_close(arguments["y_ptr"], arguments["x_ptr"] * 3)
try:
    interpret(scale_kernel, (3,), {**arguments, "n_elements": 2**30})
except OutOfBounds as error:
    print(error)
"""


def test_guards_also_where_the_environment_asks_for_tritons_own_interpreter() -> None:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]),
    }
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert "load from x_ptr[100]" in ran.stdout, ran.stderr


# What it guards


@triton.jit
def off_by_one_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets <= n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, x, mask=offsets < n_elements)


def test_names_the_line_program_and_element_of_an_access_out_of_bounds() -> None:
    with pytest.raises(OutOfBounds) as caught:
        interpret(off_by_one_kernel, (2,), scale_arguments())
    line = line_of(off_by_one_kernel, "tl.load")
    message = str(caught.value)
    assert message.startswith(f"off_by_one_kernel ({__file__}:{line}), program (1, 0, 0): ")
    assert "load from x_ptr[100], which has 100 elements (1 of 64 lanes out of bounds)" in message
    assert caught.value.access.line == line
    assert caught.value.access.program == (1, 0, 0)
    assert caught.value.bad_lanes.nonzero()[0].tolist() == [36]


@triton.jit
def far_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE) + (tl.program_id(0).to(tl.int64) + 1) * n_elements
    tl.store(y_ptr + offsets, tl.load(x_ptr + tl.arange(0, BLOCK_SIZE)))


def test_a_far_access_raises_instead_of_ending_the_process() -> None:
    with pytest.raises(OutOfBounds, match=r"store to y_ptr\[1099511627776\]"):
        interpret(far_kernel, (1,), {**scale_arguments(), "n_elements": 2**40})
    with pytest.raises(OutOfBounds, match=r"store to y_ptr\[-1125899906842624\]"):
        interpret(far_kernel, (1,), {**scale_arguments(), "n_elements": -(2**50)})


def test_a_pointer_may_not_stray_into_another_argument() -> None:
    both = torch.zeros(4096)
    x, y = torch.randn(BLOCK), torch.zeros(BLOCK)
    distance = (y.data_ptr() - x.data_ptr()) // 4
    with pytest.raises(OutOfBounds, match="y_ptr"):  # lands exactly on x
        interpret(far_kernel, (1,), {"x_ptr": x, "y_ptr": y, "n_elements": -distance, "BLOCK_SIZE": BLOCK})
    interpret(far_kernel, (1,), {"x_ptr": x, "y_ptr": both[:BLOCK], "n_elements": 1000, "BLOCK_SIZE": BLOCK})
    assert (both[1000 : 1000 + BLOCK] == x).all(), "the rest of a view's own storage is in bounds"


@triton.jit
def chosen_pointer_kernel(x_ptr, y_ptr, out_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    source = tl.where(offsets < SIZE // 2, x_ptr + offsets, y_ptr + offsets)
    tl.store(out_ptr + offsets, tl.load(source))


def test_a_pointer_chosen_between_two_arguments_may_reach_both() -> None:
    x, y, out = torch.randn(16), torch.randn(16), torch.zeros(16)
    interpret(chosen_pointer_kernel, (1,), {"x_ptr": x, "y_ptr": y, "out_ptr": out, "SIZE": 16})
    assert torch.equal(out, torch.cat([x[:8], y[8:]]))


@triton.jit
def table_kernel(table_ptr, out_ptr, distance, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    source = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + tl.program_id(0) * SIZE + offsets, tl.load(source + offsets + distance))


def test_follows_a_table_of_addresses_to_live_tensors_only() -> None:
    sources, out = [torch.randn(16), torch.randn(16)], torch.zeros(2, 16)
    table = torch.tensor([source.data_ptr() for source in sources])
    interpret(table_kernel, (2,), {"table_ptr": table, "out_ptr": out, "distance": 0, "SIZE": 16})
    assert torch.equal(out, torch.stack(sources))
    with pytest.raises(OutOfBounds, match="16 of 16 lanes"):
        interpret(table_kernel, (2,), {"table_ptr": table, "out_ptr": out, "distance": 2**40, "SIZE": 16})


@triton.jit
def atomic_kernel(count_ptr, lock_ptr, place):
    tl.atomic_add(count_ptr + place, 1)
    tl.atomic_cas(lock_ptr + place, 0, 1)


@triton.jit
def masked_atomic_kernel(count_ptr, before_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(before_ptr + lanes, tl.atomic_add(count_ptr + lanes, 1, mask=lanes < n))


def test_atomic_gives_zero_to_lanes_that_are_off() -> None:
    count, before = torch.arange(1024, dtype=torch.int32), torch.full((1024,), -1, dtype=torch.int32)
    interpret(masked_atomic_kernel, (1,), {"count_ptr": count, "before_ptr": before, "n": 3, "BLOCK": 1024})
    assert before[:3].tolist() == [0, 1, 2]
    assert not before[3:].any()


def test_guards_atomics() -> None:
    count, lock = torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    interpret(atomic_kernel, (3,), {"count_ptr": count, "lock_ptr": lock, "place": 1})
    assert (count.tolist(), lock.tolist()) == ([0, 3, 0, 0], [0, 1])
    with pytest.raises(OutOfBounds, match=r"atomic on lock_ptr\[3\], which has 2 elements"):
        interpret(atomic_kernel, (1,), {"count_ptr": count, "lock_ptr": lock, "place": 3})
    with pytest.raises(OutOfBounds, match=r"atomic on count_ptr\[-1\]"):
        interpret(atomic_kernel, (1,), {"count_ptr": count, "lock_ptr": lock, "place": -1})


class Forgiving(Observer):
    def __init__(self) -> None:
        self.errors: list[OutOfBounds] = []

    def out_of_bounds(self, error: OutOfBounds) -> None:
        self.errors.append(error)


def test_an_observer_may_let_the_launch_go_on_without_the_bad_lanes() -> None:
    arguments, forgiving = scale_arguments(), Forgiving()
    interpret(off_by_one_kernel, (2,), arguments, forgiving)
    assert torch.equal(arguments["y_ptr"], arguments["x_ptr"])
    interpret(far_kernel, (1,), {**arguments, "n_elements": 2**40}, forgiving)
    counters = {"count_ptr": torch.zeros(1), "lock_ptr": torch.zeros(1, dtype=torch.int32)}
    interpret(atomic_kernel, (1,), {**counters, "place": 2**40}, forgiving)
    assert [error.access.kind for error in forgiving.errors] == ["load", "store", "atomic", "atomic"]


@triton.jit
def failing_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    first = tl.load(x_ptr + tl.arange(0, BLOCK_SIZE))
    second = tl.arange(0, BLOCK_SIZE * 2)
    tl.store(x_ptr + second, first + second)


def test_other_errors_say_what_and_where() -> None:
    line = line_of(failing_kernel, "first + second")
    with pytest.raises(
        KernelError, match=rf"failing_kernel \(.*test_interpreter.py:{line}\), program \(0, 0, 0\)"
    ) as caught:
        interpret(failing_kernel, (1,), {"x_ptr": torch.zeros(64), "BLOCK_SIZE": 16})
    assert type(caught.value.__cause__).__name__ in str(caught.value)
    assert str(caught.value.__cause__) in str(caught.value)


def test_rejects_a_grid_of_four_dimensions() -> None:
    with pytest.raises(ValueError, match="grid has 4 dimensions"):
        interpret(scale_kernel, (1, 1, 1, 1), scale_arguments())


# What observers see


def test_observers_see_addresses_masks_programs_and_lines() -> None:
    recorder, arguments = Recorder(), scale_arguments()
    interpret(scale_kernel, (2,), arguments, recorder)
    assert recorder.launches == [("scale_kernel", (2, 1, 1), ["x_ptr", "y_ptr", "n_elements", "BLOCK_SIZE"])]
    kinds = [(access.kind, access.program, access.argument) for access in recorder.accesses]
    assert kinds == [
        (kind, (program, 0, 0), argument)
        for program in (0, 1)
        for kind, argument in (("load", "x_ptr"), ("store", "y_ptr"))
    ]
    load_of_second = recorder.accesses[2]
    first_element = arguments["x_ptr"].data_ptr() + BLOCK * 4
    assert load_of_second.addresses.tolist() == [first_element + 4 * lane for lane in range(BLOCK)]
    assert load_of_second.mask.tolist() == [BLOCK + lane < 100 for lane in range(BLOCK)]
    assert (load_of_second.element_bytes, load_of_second.kernel, load_of_second.file) == (4, "scale_kernel", __file__)
    assert load_of_second.line == line_of(scale_kernel, "tl.load")
    assert load_of_second.value is None
    stored = recorder.accesses[1].value
    assert stored is not None
    assert stored.tolist() == arguments["y_ptr"][:BLOCK].tolist()


@triton.jit
def loaded(pointer, offsets):
    return tl.load(
        pointer + offsets,
    )


@triton.jit
def product_kernel(a_ptr, c_ptr, total_ptr, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a = loaded(a_ptr, place)
    c = tl.dot(a, a)
    tl.store(c_ptr + place, c.to(tl.bfloat16))
    tl.atomic_add(total_ptr, tl.sum(tl.sum(c, axis=0), axis=0))


@triton.jit
def single_product_kernel(a_ptr, c_ptr, PRECISION: tl.constexpr):
    places = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    a = tl.load(a_ptr + places)
    tl.store(c_ptr + places, tl.dot(a, a, input_precision=PRECISION))


@pytest.mark.parametrize(
    ("precision", "error"), [("ieee", 1e-5), ("tf32", 3e-2), ("tf32x3", 1e-5), ("bf16x3", 1e-3), ("bf16x6", 1e-5)]
)
def test_observers_see_how_single_precision_is_multiplied(precision: str, error: float) -> None:
    a, c = torch.randn(16, 16), torch.empty(16, 16)
    recorder = Recorder()
    interpret(single_product_kernel, (1,), {"a_ptr": a, "c_ptr": c, "PRECISION": precision}, recorder)
    assert [dot.input_precision for dot in recorder.dots] == [precision]
    worst = (c - a.double() @ a.double()).abs().max()
    assert worst < error
    assert worst > error / 100 or error == 1e-5, "the operands are rounded as by the tensor cores"


def test_observers_see_helpers_lines_dots_atomics_and_widened_values() -> None:
    recorder = Recorder()
    a, c, total = torch.randn(16, 16).bfloat16(), torch.zeros(16, 16).bfloat16(), torch.zeros(1)
    interpret(product_kernel, (1,), {"a_ptr": a, "c_ptr": c, "total_ptr": total, "SIZE": 16}, recorder)
    load, store, atomic = recorder.accesses
    assert (load.line, load.kernel) == (line_of(loaded, "tl.load"), "product_kernel")
    assert load.addresses.shape == (16, 16)
    assert store.value is not None
    assert store.value.dtype == "float32"
    assert store.value.tolist() == c.float().tolist()
    assert (atomic.kind, atomic.argument, atomic.element_bytes) == ("atomic", "total_ptr", 4)
    (dot,) = recorder.dots
    assert (dot.batch, dot.m, dot.n, dot.k, dot.operand_format, dot.accumulator_format) == (
        1,
        16,
        16,
        16,
        "bf16",
        "fp32",
    )
    assert dot.line == line_of(product_kernel, "tl.dot")


# Tensor descriptors and other arguments


@triton.jit
def descriptor_kernel(source, target_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    target = tl.make_tensor_descriptor(target_ptr, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    place = [tl.program_id(1) * ROWS, tl.program_id(0) * COLUMNS]
    target.store(place, source.load(place) + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_descriptors_made_on_host_and_device(dtype: torch.dtype) -> None:
    x, y = torch.randn(20, 32).to(dtype), torch.zeros(20, 32).to(dtype)
    recorder = Recorder()
    source = TensorDescriptor.from_tensor(x, [16, 16])
    with interpreting(recorder):
        descriptor_kernel[(2, 2)](source, y, 20, 32, ROWS=16, COLUMNS=16)
    torch.testing.assert_close(y, x + 1)
    assert {access.argument for access in recorder.accesses} == {"source", "target_ptr"}


def test_guards_descriptors() -> None:
    x, y = torch.randn(16, 16), torch.zeros(16, 16)
    with pytest.raises(OutOfBounds, match=r"store to target_ptr\[256\]"):
        interpret(
            descriptor_kernel,
            (1, 2),
            {
                "source": TensorDescriptor.from_tensor(x, [16, 16]),
                "target_ptr": y,
                "rows": 32,
                "columns": 16,
                "ROWS": 16,
                "COLUMNS": 16,
            },
        )


def test_descriptors_pad_bfloat16_with_nan() -> None:
    x, y = torch.randn(8, 16).bfloat16(), torch.zeros(16, 16).bfloat16()
    source = TensorDescriptor.from_tensor(x, [16, 16], padding="nan")
    interpret(
        descriptor_kernel,
        (1,),
        {"source": source, "target_ptr": y, "rows": 16, "columns": 16, "ROWS": 16, "COLUMNS": 16},
    )
    assert torch.equal(y[:8], x + 1)
    assert y[8:].isnan().all()


Pair = namedtuple("Pair", ["first", "second"])


@triton.jit
def arguments_kernel(pair, flag, eps, y_ptr, wide: tl.int64, OPTIONAL: tl.constexpr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    y = tl.load(pair.first + offsets) + tl.load(pair[1] + offsets)
    if flag:
        y += eps.to(tl.float32)
    if OPTIONAL is None:
        y += (wide * 2147483647).to(tl.float32)
    tl.store(y_ptr + offsets, y)


def test_takes_named_tuples_booleans_floats_none_and_annotated_integers() -> None:
    first, second, y = torch.randn(8), torch.randn(8), torch.zeros(8)
    arguments: dict[str, Any] = {"pair": Pair(first, second), "eps": 0.5, "y_ptr": y, "wide": 4, "OPTIONAL": None}
    interpret(arguments_kernel, (1,), {**arguments, "flag": True, "SIZE": 8})
    torch.testing.assert_close(y, first + second + 0.5 + 4.0 * 2147483647)
    interpret(arguments_kernel, (1,), {**arguments, "flag": False, "OPTIONAL": 1, "SIZE": 8})
    torch.testing.assert_close(y, first + second)


# How it reads kernels


@triton.jit
def language_kernel(x_ptr, y_ptr, n_elements, SIZE: tl.constexpr, SKIP: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    inside = 2 < offsets <= n_elements
    either = offsets < 2 or offsets > 12
    if not SKIP and n_elements > 3:
        total = tl.zeros([SIZE], tl.int32)
        for step in range(0, n_elements, 3):
            total += min(offsets, step.to(tl.int32)) + max(offsets, 2)
        store(y_ptr + offsets, tl.where(inside, total, -1) + tl.where(not either, 1000, 0))
    else:
        store(y_ptr + offsets, load(x_ptr + offsets))


def test_reads_boolean_operators_chains_loops_and_imported_names_as_the_compiler_does() -> None:
    x, y = torch.full((16,), 7, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    interpret(language_kernel, (1,), {"x_ptr": x, "y_ptr": y, "n_elements": 10, "SIZE": 16, "SKIP": False})
    expected = [
        (sum(min(i, step) + max(i, 2) for step in range(0, 10, 3)) if 2 < i <= 10 else -1)
        + (1000 if 2 <= i <= 12 else 0)
        for i in range(16)
    ]
    assert y.tolist() == expected
    interpret(language_kernel, (1,), {"x_ptr": x, "y_ptr": y, "n_elements": 10, "SIZE": 16, "SKIP": True})
    assert torch.equal(y, x)


@triton.jit
def ambiguous_kernel(x_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    if tl.load(x_ptr + offsets) > 0:
        tl.store(x_ptr + offsets, offsets)


@triton.jit
def asserting_kernel(x_ptr, SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, SIZE))
    assert x > 0, "must be positive"


def test_a_block_has_no_truth_value_and_an_assertion_must_hold_in_every_lane() -> None:
    line = line_of(ambiguous_kernel, "if tl.load")
    with pytest.raises(KernelError, match=f":{line}.*shape \\[4\\] has no single truth value"):
        interpret(ambiguous_kernel, (1,), {"x_ptr": torch.ones(4), "SIZE": 4})
    interpret(asserting_kernel, (1,), {"x_ptr": torch.ones(4), "SIZE": 4})
    with pytest.raises(KernelError, match="must be positive"):
        interpret(asserting_kernel, (1,), {"x_ptr": torch.tensor([1.0, 1.0, 0.0, 1.0]), "SIZE": 4})


def device_assertion(x_ptr, SIZE: tl.constexpr):
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.device_assert(tl.load(x_ptr + offsets) > 0, "must be positive", mask=offsets < 7)


def test_device_assertion_is_checked_where_the_launch_is_debugged(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, debugged = triton.jit(device_assertion), triton.jit(debug=True)(device_assertion)
    line = line_of(plain, "tl.device_assert")
    x = torch.ones(8)
    x[7] = 0.0  # its mask is off
    interpret(debugged, (2,), {"x_ptr": x, "SIZE": 4})
    x[6] = 0.0
    place = rf"device_assertion \(.*test_interpreter.py:{line}\), program \(1, 0, 0\): AssertionError: must be positive"
    with pytest.raises(KernelError, match=place):
        interpret(debugged, (2,), {"x_ptr": x, "SIZE": 4})
    interpret(plain, (2,), {"x_ptr": x, "SIZE": 4})
    with pytest.raises(KernelError, match=place):
        interpret(plain, (2,), {"x_ptr": x, "SIZE": 4}, options={"debug": True})
    monkeypatch.setattr(triton.knobs.runtime, "debug", True)
    with pytest.raises(KernelError, match=place), interpreting():
        plain[(2,)](x, SIZE=4)


@triton.jit
def shifted(x, shift=1, *, factor=10):
    return (x + shift) * factor


def closed_over(bias: int, helper: Any) -> Any:
    @triton.jit
    def closure_kernel(y_ptr, SIZE: tl.constexpr = 4):
        tl.store(y_ptr + tl.arange(0, SIZE), helper(tl.arange(0, SIZE)) + BIAS)

    BIAS = tl.constexpr(bias)
    return closure_kernel


def test_kernels_see_their_closure_and_defaults() -> None:
    y = torch.zeros(4, dtype=torch.int32)
    interpret(closed_over(5, shifted), (1,), {"y_ptr": y})
    assert y.tolist() == [15, 25, 35, 45]


# Reductions with the user's combine function


@triton.jit
def affine(a_scale, a_shift, b_scale, b_shift):
    return a_scale * b_scale, a_shift * b_scale + b_shift


@triton.jit
def branching(a, b):
    if a > b:
        b = a
    return b


@triton.jit
def combine_kernel(x_ptr, z_ptr, y_ptr, best_ptr, scan_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    place = rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x, z = tl.load(x_ptr + place), tl.load(z_ptr + place)
    whole_scale, whole_shift = tl.reduce((x, z), -1, affine)
    tl.store(y_ptr + rows, whole_scale)
    tl.store(y_ptr + ROWS + rows, whole_shift)
    tl.store(best_ptr + rows[:, None], tl.reduce(x, -1, branching, keep_dims=True))
    scale, shift = tl.associative_scan((x, z), -1, affine, reverse=True)
    tl.store(scan_ptr + place, scale + shift)


def test_reduces_and_scans_with_any_combine_function() -> None:
    x, z = torch.randn(4, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    y, best, scan = torch.zeros(2, 4).double(), torch.zeros(4).double(), torch.zeros(4, 8).double()
    sizes = {"ROWS": 4, "COLUMNS": 8}
    interpret(combine_kernel, (1,), {"x_ptr": x, "z_ptr": z, "y_ptr": y, "best_ptr": best, "scan_ptr": scan, **sizes})
    assert torch.equal(best, x.amax(1))
    scale, shift = torch.ones(4).double(), torch.zeros(4).double()
    for column in range(8):  # affine maps do not commute: the order along the axis must be kept
        scale, shift = scale * x[:, column], shift * x[:, column] + z[:, column]
    torch.testing.assert_close(y, torch.stack([scale, shift]))
    scale, shift = torch.ones(4).double(), torch.zeros(4).double()
    for column in reversed(range(8)):
        scale, shift = scale * x[:, column], shift * x[:, column] + z[:, column]
        torch.testing.assert_close(scan[:, column], scale + shift)


@triton.jit
def talkative(a, b):
    tl.static_print("combining")
    return a * b


@triton.jit
def talkative_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, SIZE))
    tl.store(y_ptr, tl.reduce(x, 0, talkative))


def test_combines_whole_blocks_rather_than_elements(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = torch.rand(1024, dtype=torch.float64) + 0.5, torch.zeros(1, dtype=torch.float64)
    interpret(talkative_kernel, (1,), {"x_ptr": x, "y_ptr": y, "SIZE": 1024})
    torch.testing.assert_close(y[0], x.prod())
    assert capsys.readouterr().out.count("combining") == 10


@triton.jit
def indexed_kernel(x_ptr, index_ptr, y_ptr, best_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    x, index = tl.load(x_ptr + offsets), tl.load(index_ptr + offsets)
    best, where = tl.reduce((x, index), 0, tl.standard._argmax_combine_tie_break_left)
    tl.store(best_ptr, best)
    tl.store(y_ptr, where)


def test_argmax_returns_the_index_it_was_given() -> None:
    x, index = torch.tensor([1.0, 5.0, 2.0, 0.0]), torch.tensor([70, 50, 60, 40], dtype=torch.int32)
    y, best = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    interpret(indexed_kernel, (1,), {"x_ptr": x, "index_ptr": index, "y_ptr": y, "best_ptr": best, "SIZE": 4})
    assert (y.item(), best.item()) == (50, 5.0)


def test_knows_tritons_version() -> None:
    assert triton.__version__.startswith("{}.{}.".format(*triton_version()))


def test_runs_only_the_programs_that_are_named() -> None:
    arguments = {"x_ptr": torch.ones(4 * BLOCK), "y_ptr": torch.zeros(4 * BLOCK), "n_elements": 4 * BLOCK}
    interpret(scale_kernel, (4,), {**arguments, "BLOCK_SIZE": BLOCK}, programs=[(1, 0, 0), (3, 0, 0)])
    written = arguments["y_ptr"].reshape(4, BLOCK) != 0
    assert written.all(dim=1).tolist() == [False, True, False, True]
    assert not written[0::2].any()


def test_autotuner_of_a_library_runs_one_configuration_and_is_restored() -> None:
    class Tuner(Autotuner):  # type: ignore[misc]  # Triton ships no types
        def run(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("times every configuration")

    stock = Tuner.run
    configurations = [triton.Config({"BLOCK_SIZE": block}) for block in (32, 64)]
    x, y = torch.randn(64), torch.empty(64)
    with interpreting():
        tuner = Tuner(scale_kernel, scale_kernel.arg_names, configurations, [], None, None)
        tuner[(2,)](x, y, 64)
    assert torch.isfinite(y).all()
    assert Tuner.run is stock


@triton.jit
def value_kernel(y_ptr, BLOCK: tl.constexpr, dtype: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK.value), tl.full([BLOCK.value], 3, dtype.value))


def test_value_of_a_constant_is_the_constant() -> None:
    y = torch.empty(16)
    with interpreting():
        value_kernel[(1,)](y, 16, tl.float32)
    assert torch.equal(y, torch.full((16,), 3.0))


@triton.jit
def waits_for_a_later_program(flags_ptr, VOLATILE: tl.constexpr):
    number = tl.program_id(0)
    if VOLATILE:
        while tl.load(flags_ptr + number + 1, volatile=True) == 0:
            pass
    else:
        while tl.atomic_cas(flags_ptr + number + 1, 1, 1) != 1:
            pass
    tl.atomic_xchg(flags_ptr + number, 1)


@triton.jit
def counts_and_polls(flags_ptr, COUNT: tl.constexpr):
    for _ in range(COUNT):
        tl.atomic_add(flags_ptr, 1)
    for number in range(COUNT):
        tl.store(flags_ptr + 1, tl.load(flags_ptr) + number)


@pytest.mark.parametrize("volatile", [True, False])
def test_wait_for_a_later_program_is_named_with_its_line(volatile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgramBuilder, "most_polls", 20)
    with (
        interpreting(),
        pytest.raises(KernelError, match=r"how to wait for later programs: .*\.py:\d+\), program \(0, 0, 0\)"),
    ):
        waits_for_a_later_program[(2,)](torch.tensor([0, 0, 1], dtype=torch.int32), VOLATILE=volatile)


def test_wait_that_an_earlier_program_ended_and_counting_are_no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgramBuilder, "most_polls", 20)
    flags = torch.tensor([0, 1, 1], dtype=torch.int32)
    with interpreting():
        waits_for_a_later_program[(2,)](flags, VOLATILE=False)
        counts_and_polls[(1,)](flags, COUNT=30)
    assert flags.tolist() == [31, 60, 1]


@triton.jit
def forgets_to_release(lock_ptr, x_ptr, RELEASE: tl.constexpr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(x_ptr, tl.load(x_ptr) + 1)
    if RELEASE:
        tl.atomic_xchg(lock_ptr, 0)


def test_lock_that_nobody_releases_is_a_wait_that_never_ends() -> None:
    line = forgets_to_release.fn.__code__.co_firstlineno + 2
    lock, x = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    with interpreting():
        forgets_to_release[(4,)](lock, x, RELEASE=True)
        assert x.item() == 4
        with pytest.raises(KernelError, match=rf"\.py:{line}\), program \(1, 0, 0\): this wait never ends"):
            forgets_to_release[(4,)](lock, x, RELEASE=False)


@triton.jit
def waits_for_the_program_before(flags_ptr):
    number = tl.program_id(0)
    while tl.atomic_cas(flags_ptr + number, 1, 1) != 1:
        pass
    tl.atomic_xchg(flags_ptr + number + 1, 1)


def test_wait_that_ends_in_another_order_is_not_endless() -> None:
    flags = torch.tensor([1, 0, 0, 0], dtype=torch.int32)
    last_first = [(number, 0, 0) for number in (2, 1, 0)]
    with pytest.raises(KernelError, match=r"how to wait for later programs: .*program \(2, 0, 0\)"):
        interpret(waits_for_the_program_before, (3,), {"flags_ptr": flags}, programs=last_first)


@triton.jit
def sums_blocks(x_ptr, y_ptr, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    first = n * 0
    total = tl.zeros((BLOCK,), tl.float32)
    while first < n:
        offsets = first + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
        if n > BLOCK:
            first += STEP
    tl.store(y_ptr, tl.sum(total))


@triton.jit
def swaps_until_equal(y_ptr, left, right):
    rounds = left * 0
    while left != right:
        before = left
        left = right
        right = before
        rounds += 1
    tl.store(y_ptr, rounds)


@triton.jit
def counts_by_loading_one(y_ptr, n):
    count = n * 0
    while count < n:
        count += tl.load(y_ptr + 1)
    tl.store(y_ptr, count)


def test_loop_whose_condition_does_not_change_is_named_with_its_line() -> None:
    x, y = torch.ones(1000), torch.ones(2, dtype=torch.int32)
    loop = sums_blocks.fn.__code__.co_firstlineno + 4
    with interpreting():
        with pytest.raises(KernelError, match=rf"\.py:{loop}\), program \(0, 0, 0\): this loop never ends"):
            sums_blocks[(1,)](x, y, 1000, STEP=0, BLOCK=16)
        with pytest.raises(KernelError, match="this loop never ends"):
            swaps_until_equal[(1,)](y, 3, 4)


def test_long_loops_end() -> None:
    x, y = torch.ones(1000), torch.ones(2, dtype=torch.int32)
    with interpreting():
        sums_blocks[(1,)](x, y, 1000, STEP=1, BLOCK=1)
        assert y[0] == 1000
        counts_by_loading_one[(1,)](y, 1500)
        assert y[0] == 1500


def test_place_in_the_users_code_is_outside_of_numpy() -> None:
    assert not is_user_code(np.lib.stride_tricks.as_strided.__code__.co_filename)
    assert is_user_code(__file__)
