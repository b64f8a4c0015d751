# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""Compiling for any target, and facts of the binaries."""

import inspect
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.nvidia.compiler import get_ptxas
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.interpreter import InterpretedFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.toolchain.compiler import (
    DEFAULT_TARGETS,
    Binary,
    CompileError,
    Target,
    compile_kernel,
    nvidia,
    require_compilable,
    translate_kernel,
)

HOPPER, CDNA3 = DEFAULT_TARGETS
BOTH_VENDORS = pytest.mark.parametrize("target", DEFAULT_TARGETS, ids=str)


@triton.jit
def row_kernel(x_ptr, weight_ptr, y_ptr, row_stride, columns, eps, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    mask = offsets < columns
    x = load_in_helper(x_ptr + tl.program_id(0) * row_stride + offsets, mask)
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / columns + eps)
    tl.store(y_ptr + tl.program_id(0) * row_stride + offsets, x * inverse_rms * weight, mask=mask)


@triton.jit
def load_in_helper(pointers, mask):
    return tl.load(pointers, mask=mask, other=0.0)  # in the helper


@triton.jit
def dot_kernel(x_ptr, y_ptr, row_stride, steps, BLOCK_SIZE: tl.constexpr):
    rows = tl.arange(0, BLOCK_SIZE)
    offsets = rows[:, None] * row_stride + rows[None, :]
    total = tl.zeros((BLOCK_SIZE, BLOCK_SIZE), tl.float32)
    for step in range(steps):
        x = tl.load(x_ptr + step * BLOCK_SIZE + offsets)
        total = tl.dot(x, x, total)
    tl.store(y_ptr + offsets, total.to(tl.float16))


@triton.jit
def optional_kernel(x_ptr, bias_ptr, step, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE) * step
    x = tl.load(x_ptr + offsets)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offsets)
    tl.store(x_ptr + offsets, x)


@triton.jit(do_not_specialize=["step"])
def unspecialized_kernel(x_ptr, step, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE) * step
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1.0)


@triton.jit
def atomic_kernel(x_ptr, total_ptr, BLOCK_SIZE: tl.constexpr):
    tl.atomic_add(total_ptr + tl.arange(0, BLOCK_SIZE), tl.load(x_ptr + tl.arange(0, BLOCK_SIZE)))


@triton.jit
def printing_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    tl.device_print("x", tl.load(x_ptr + tl.arange(0, BLOCK_SIZE)))


@triton.jit
def descriptor_kernel(x_descriptor, y_ptr, BLOCK_SIZE: tl.constexpr):
    x = x_descriptor.load([0, 0])
    tl.store(y_ptr + tl.arange(0, BLOCK_SIZE)[:, None] * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :], x)


@triton.jit
def strides_kernel(x_ptr, strides, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    pointers = x_ptr + offsets[:, None] * strides[0] + offsets[None, :] * strides[1]
    tl.store(pointers, tl.load(pointers) + 1.0)


@gluon.jit
def gluon_kernel(x_ptr, BLOCK_SIZE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    offsets = gl.arange(0, BLOCK_SIZE, layout=layout)
    gl.store(x_ptr + offsets, gl.load(x_ptr + offsets) + 1.0)


@triton.jit
def indexing_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK_SIZE))
    tl.store(x_ptr, x[0])  # no such thing in Triton


@triton.jit
def wrong_rank_helper(x):
    return tl.dot(x, x)


@triton.jit
def wrong_helper_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK_SIZE))
    tl.store(x_ptr + tl.arange(0, BLOCK_SIZE), wrong_rank_helper(x))  # calls the wrong helper


@triton.jit
def größe(x_ptr):
    tl.store(x_ptr, 1.0)


@triton.jit
def nonsense_instruction_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK_SIZE))
    y = tl.inline_asm_elementwise("nonsense.b32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1)
    tl.store(x_ptr + tl.arange(0, BLOCK_SIZE), y)


@triton.jit
def misspelt_modifier_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK_SIZE))
    x = tl.inline_asm_elementwise("add.rn.f32 $0, $1, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    x = helper_with_misspelt_modifier(x)
    tl.store(x_ptr + tl.arange(0, BLOCK_SIZE), x)


@triton.jit
def helper_with_misspelt_modifier(x):
    return tl.inline_asm_elementwise("mul.rnn.f32 $0, $1, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def two_constraints_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK_SIZE))
    x = tl.inline_asm_elementwise("; register", "=r,r", [x], tl.float32, is_pure=True, pack=1)
    x = tl.inline_asm_elementwise("; unknown", "=Q,Q", [x], tl.float32, is_pure=True, pack=1)
    tl.store(x_ptr + tl.arange(0, BLOCK_SIZE), x)


def compile_row(target: Target, block_size: int = 1024, columns: int = 1024, **changes: object) -> Binary:
    x = torch.empty(4 * columns)
    arguments = {"x_ptr": x, "weight_ptr": x, "y_ptr": x, "row_stride": columns, "columns": columns, "eps": 1e-6}
    return compile_kernel(row_kernel, target, {**arguments, "BLOCK_SIZE": block_size, **changes})


def compile_dot(target: Target, num_stages: int | None = None) -> Binary:
    x = torch.empty(64, 512, dtype=torch.float16)
    arguments = {"x_ptr": x, "y_ptr": x, "row_stride": 512, "steps": 8, "BLOCK_SIZE": 64}
    return compile_kernel(dot_kernel, target, arguments, num_stages=num_stages)


@pytest.fixture(scope="session")
def rows() -> dict[Target, Binary]:
    """A well-behaved kernel on both vendors."""
    return {target: compile_row(target) for target in DEFAULT_TARGETS}


@pytest.fixture(scope="session")
def spilling_rows() -> dict[Target, Binary]:
    """Return a binary whose threads hold 256 elements of each operand: more than the registers hold."""
    sizes = {target: 256 * 4 * target.warp_size for target in DEFAULT_TARGETS}
    return {target: compile_row(target, block_size=size, columns=size) for target, size in sizes.items()}


def line_of(function: Any, text: str) -> int:
    lines, start = inspect.getsourcelines(function.fn)
    return start + next(place for place, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("name", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx90a", "hip:gfx1100"])
def test_target_names_round_trip(name: str) -> None:
    assert str(Target.parse(name)) == name


@pytest.mark.parametrize(
    ("name", "warp_size"), [("cuda:90", 32), ("hip:gfx942", 64), ("hip:gfx90a", 64), ("hip:gfx1100", 32)]
)
def test_target_knows_its_warp_size(name: str, warp_size: int) -> None:
    assert Target.parse(name).warp_size == warp_size


@pytest.mark.parametrize("name", ["", "cuda", "cuda:", "cuda:9", "cuda:gfx942", "hip:90", "hip:mi300x", "metal:3"])
def test_rejects_nonsense_target_and_says_what_is_expected(name: str) -> None:
    with pytest.raises(ValueError, match=r"target: unknown target .*cuda:90.*hip:gfx942"):
        Target.parse(name)


@BOTH_VENDORS
def test_sane_kernel_has_registers_and_no_spills(rows: dict[Target, Binary], target: Target) -> None:
    row = rows[target]
    assert 8 <= row.registers <= 128
    assert (row.spill_bytes, row.stack_bytes) == (0, 0)
    assert (row.kernel, row.target, row.num_warps) == ("row_kernel", target, 4)


@BOTH_VENDORS
def test_huge_block_spills(spilling_rows: dict[Target, Binary], target: Target) -> None:
    assert spilling_rows[target].spill_bytes > 0
    assert spilling_rows[target].stack_bytes > 0


def test_nvidia_spills_are_those_that_ptxas_reports(spilling_rows: dict[Target, Binary], tmp_path: Any) -> None:
    row = spilling_rows[HOPPER]
    ptx = tmp_path / "kernel.ptx"
    ptx.write_text(row.assembly["ptx"])
    command = [get_ptxas(90).path, "-v", "-lineinfo", "--gpu-name=sm_90a", str(ptx), "-o", str(tmp_path / "cubin")]
    if "regAllocOptLevel" in inspect.getsource(triton.backends.nvidia.compiler):
        command.append("--regAllocOptLevel=2")
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    stores, loads = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report).groups()  # type: ignore[union-attr]  # no match fails the test too
    assert row.spill_bytes == int(stores) + int(loads)


def test_amd_spills_agree_with_the_metadata(spilling_rows: dict[Target, Binary]) -> None:
    row = spilling_rows[CDNA3]
    spilled_registers = int(re.findall(r"\.vgpr_spill_count:\s+(\d+)", row.assembly["amdgcn"])[0])
    # Without branches, each spilled register is stored once and loaded once.
    assert row.spill_bytes == 2 * 4 * spilled_registers


def test_amd_registers_include_accumulation_registers(spilling_rows: dict[Target, Binary]) -> None:
    row = spilling_rows[CDNA3]
    accumulation = int(re.findall(r"\.agpr_count:\s+(\d+)", row.assembly["amdgcn"])[0])
    assert accumulation > 0
    assert row.registers == 256 + accumulation


def test_stack_of_a_print_is_no_spill() -> None:
    binary = compile_kernel(printing_kernel, HOPPER, {"x_ptr": torch.empty(64), "BLOCK_SIZE": 64})
    assert binary.stack_bytes > 0
    assert binary.spill_bytes == 0


@BOTH_VENDORS
def test_unaligned_stride_loses_vector_width(rows: dict[Target, Binary], target: Target) -> None:
    assert rows[target].vector_bytes == 16
    x_line = line_of(load_in_helper, "in the helper")
    unaligned = compile_row(target, row_stride=1023)
    widths = {access.vector_bytes for access in unaligned.accesses if access.line == x_line}
    assert widths == {4}


@BOTH_VENDORS
def test_unaligned_pointer_loses_vector_width(target: Target) -> None:
    shifted = compile_row(target, weight_ptr=torch.empty(1025)[1:])
    weight_line = line_of(row_kernel, "weight = tl.load")
    widths = {access.line: access.vector_bytes for access in shifted.accesses}
    assert widths[weight_line] == 4
    assert widths[line_of(load_in_helper, "in the helper")] == 16


@BOTH_VENDORS
def test_accesses_are_named_by_source_line(rows: dict[Target, Binary], target: Target) -> None:
    assert [(access.kind, access.line) for access in rows[target].accesses] == [
        ("load", line_of(row_kernel, "weight = tl.load")),
        ("store", line_of(row_kernel, "tl.store")),
        ("load", line_of(load_in_helper, "in the helper")),
    ]
    # Also where Triton's cache has the binary from another checkout.
    assert {access.file for access in rows[target].accesses} == {__file__}
    # 1024 floats of 4 bytes by a block of 4 warps.
    assert {access.count for access in rows[target].accesses} == {1024 * 4 // 16 // (4 * target.warp_size)}


@BOTH_VENDORS
def test_atomics_are_told_from_stores(target: Target) -> None:
    x = torch.empty(1024, dtype=torch.int32)
    binary = compile_kernel(atomic_kernel, target, {"x_ptr": x, "total_ptr": x, "BLOCK_SIZE": 1024})
    assert {(access.kind, access.vector_bytes) for access in binary.accesses} == {("load", 16), ("atomic", 4)}


@pytest.mark.parametrize("target", [Target("cuda", 80), HOPPER, CDNA3], ids=str)
def test_dot_uses_tensor_cores(target: Target) -> None:
    assert compile_dot(target).tensor_cores


@BOTH_VENDORS
def test_elementwise_work_uses_no_tensor_cores(rows: dict[Target, Binary], target: Target) -> None:
    assert not rows[target].tensor_cores


def test_descriptor_loads_by_bulk_copy(rows: dict[Target, Binary]) -> None:
    x = torch.empty(64, 64)
    descriptor = TensorDescriptor.from_tensor(x, [64, 64])
    binary = compile_kernel(descriptor_kernel, HOPPER, {"x_descriptor": descriptor, "y_ptr": x, "BLOCK_SIZE": 64})
    assert binary.async_copies
    assert not rows[HOPPER].async_copies
    assert ("load", line_of(descriptor_kernel, "x_descriptor.load")) in {(a.kind, a.line) for a in binary.accesses}


@BOTH_VENDORS
def test_shared_memory_of_a_dot(rows: dict[Target, Binary], target: Target) -> None:
    assert compile_dot(target).shared_bytes >= 64 * 64 * 2
    assert rows[target].shared_bytes < 1024


@BOTH_VENDORS
def test_assembly_holds_every_stage(rows: dict[Target, Binary], target: Target) -> None:
    stages = {"ttir": "tt.load", "ttgir": "ttg.num-warps"}
    stages |= {"ptx": "ld.global", "sass": "LDG"} if target == HOPPER else {"amdgcn": "buffer_load"}
    assembly = rows[target].assembly
    assert set(stages) <= set(assembly)
    for stage, expected in stages.items():
        assert expected in assembly[stage]


def test_arguments_equal_to_one_and_none_become_constants() -> None:
    x = torch.empty(256)
    arguments = {"x_ptr": x, "bias_ptr": None, "step": 1, "BLOCK_SIZE": 256}
    constant = compile_kernel(optional_kernel, HOPPER, arguments)
    strided = compile_kernel(optional_kernel, HOPPER, {**arguments, "bias_ptr": x, "step": 2})
    assert _kernel_parameters(constant) == 1
    assert _kernel_parameters(strided) == 3
    assert (constant.vector_bytes, strided.vector_bytes) == (8, 4)


def test_respects_do_not_specialize() -> None:
    binary = compile_kernel(unspecialized_kernel, HOPPER, {"x_ptr": torch.empty(256), "step": 1, "BLOCK_SIZE": 256})
    assert _kernel_parameters(binary) == 2


def _kernel_parameters(binary: Binary) -> int:
    """Return the parameters in TTIR, before the compiler adds its own."""
    signature = re.search(r"tt\.func public @\w+\((.*?)\) attributes", binary.assembly["ttir"], re.DOTALL)
    assert signature is not None
    return len(re.findall(r"%\w+: ", signature[1]))


def test_accepts_tuples() -> None:
    x = torch.empty(64, 64)
    binary = compile_kernel(strides_kernel, HOPPER, {"x_ptr": x, "strides": (64, 1), "BLOCK_SIZE": 64})
    assert binary.vector_bytes == 16


@pytest.mark.parametrize("num_warps", [1, 8])
def test_num_warps_reaches_the_compiler(num_warps: int) -> None:
    arguments = {"x_ptr": torch.empty(256), "step": 1, "BLOCK_SIZE": 256}
    binary = compile_kernel(unspecialized_kernel, HOPPER, arguments, num_warps=num_warps)
    assert binary.num_warps == num_warps
    assert f".reqntid {32 * num_warps}" in binary.assembly["ptx"]


def test_options_reach_the_compiler() -> None:
    arguments = {"x_ptr": torch.empty(256), "step": 1, "BLOCK_SIZE": 256}
    binary = compile_kernel(unspecialized_kernel, HOPPER, arguments, maxnreg=24)
    assert ".maxnreg 24" in binary.assembly["ptx"]


def test_num_stages_reaches_the_compiler() -> None:
    fewer, more = (compile_dot(HOPPER, num_stages=num_stages).shared_bytes for num_stages in (3, 4))
    # One more tile of 64 × 64 float16 is in shared memory.
    assert more - fewer == 64 * 64 * 2


def test_unwraps_autotuning_and_heuristics(rows: dict[Target, Binary]) -> None:
    tuned = triton.autotune(configs=[triton.Config({"BLOCK_SIZE": 1024})], key=[])(row_kernel)
    wrapped = triton.heuristics({"BLOCK_SIZE": lambda arguments: 1024})(tuned)
    x = torch.empty(4096)
    arguments = {"x_ptr": x, "weight_ptr": x, "y_ptr": x, "row_stride": 1024, "columns": 1024, "eps": 1e-6}
    assert compile_kernel(wrapped, HOPPER, {**arguments, "BLOCK_SIZE": 1024}) == rows[HOPPER]


def test_compiles_gluon() -> None:
    binary = compile_kernel(gluon_kernel, HOPPER, {"x_ptr": torch.empty(512), "BLOCK_SIZE": 512})
    assert [(access.kind, access.vector_bytes) for access in binary.accesses] == [("load", 16), ("store", 16)]


def test_compiles_after_the_interpreter_ran() -> None:
    x = torch.zeros(16)
    InterpretedFunction(unspecialized_kernel.fn)[(1,)](x, 1, BLOCK_SIZE=16)
    assert x.eq(1).all()
    assert compile_kernel(unspecialized_kernel, HOPPER, {"x_ptr": x, "step": 1, "BLOCK_SIZE": 16}).registers > 0


@BOTH_VENDORS
def test_compile_error_names_kernel_target_and_line(target: Target) -> None:
    with pytest.raises(CompileError) as caught:
        compile_kernel(indexing_kernel, target, {"x_ptr": torch.empty(64), "BLOCK_SIZE": 64})
    error = caught.value
    assert (error.kernel, error.target, error.file) == ("indexing_kernel", target, __file__)
    assert error.line == line_of(indexing_kernel, "no such thing")
    assert f"indexing_kernel does not compile for {target} ({__file__}:{error.line})" in str(error)
    assert "unsupported tensor index" in str(error)


def test_name_that_triton_refuses_is_named_with_its_line() -> None:
    with pytest.raises(CompileError, match=r"\ninvalid function identifier: größe$") as caught:
        compile_kernel(größe, HOPPER, {"x_ptr": torch.empty(64)})
    assert caught.value.line == line_of(größe, "def größe")


def test_compile_error_in_helper_says_what_is_wrong_and_where_the_kernel_calls_it() -> None:
    with pytest.raises(CompileError, match="equal ranks") as caught:
        compile_kernel(wrong_helper_kernel, HOPPER, {"x_ptr": torch.empty(64), "BLOCK_SIZE": 64})
    assert caught.value.line == line_of(wrong_helper_kernel, "calls the wrong helper")


@pytest.mark.parametrize(("target", "reason"), [(HOPPER, "nonsense"), (CDNA3, "error: invalid instruction")], ids=str)
def test_compile_error_of_the_assembler_gives_its_reason(
    target: Target, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CompileError, match=reason) as caught:
        compile_kernel(nonsense_instruction_kernel, target, {"x_ptr": torch.empty(64), "BLOCK_SIZE": 64})
    assert caught.value.line == line_of(nonsense_instruction_kernel, "nonsense.b32")
    assert "Repro command" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_compile_error_of_ptxas_names_the_line_in_the_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CompileError, match=r"Unknown modifier '\.rnn'") as caught:
        compile_kernel(misspelt_modifier_kernel, HOPPER, {"x_ptr": torch.empty(64), "BLOCK_SIZE": 64})
    assert caught.value.line == line_of(helper_with_misspelt_modifier, "mul.rnn")
    assert list(tmp_path.iterdir()) == []  # Triton leaves the PTX there


@BOTH_VENDORS
def test_constraint_that_the_target_lacks_is_a_compile_error(target: Target) -> None:
    """LLVM prints an error, and Triton goes on without the instruction."""
    for _ in range(2):  # the second time from Triton's cache
        with pytest.raises(CompileError, match="constraint 'Q'") as caught:
            compile_kernel(two_constraints_kernel, target, {"x_ptr": torch.empty(64), "BLOCK_SIZE": 64})
        assert caught.value.line == line_of(two_constraints_kernel, "unknown")


def test_front_end_does_not_read_inline_assembly_and_the_assembler_does() -> None:
    arguments = {"x_ptr": torch.empty(64), "BLOCK_SIZE": 64}
    assert "mul.rnn.f32" in translate_kernel(misspelt_modifier_kernel, HOPPER, arguments, set())
    with pytest.raises(CompileError, match="Unknown modifier"):
        require_compilable(misspelt_modifier_kernel, HOPPER, arguments, set())


def test_option_unknown_to_the_target_is_a_compile_error() -> None:
    arguments = {"x_ptr": torch.empty(64), "step": 1, "BLOCK_SIZE": 64}
    with pytest.raises(CompileError, match="waves_per_eu"):
        compile_kernel(unspecialized_kernel, HOPPER, arguments, waves_per_eu=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x_ptr": None}, "arguments: unspecialized_kernel also needs step, BLOCK_SIZE"),
        ({"x_ptr": None, "step": 1, "BLOCK": 64}, "arguments: unspecialized_kernel has no parameter BLOCK"),
    ],
)
def test_rejects_wrong_argument_names(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_kernel(unspecialized_kernel, HOPPER, arguments)


@pytest.mark.parametrize("kernel", [print, lambda x: x, None])
def test_rejects_a_function_that_is_not_a_kernel(kernel: Callable[..., object] | None) -> None:
    with pytest.raises(TypeError, match=r"kernel: expected a function decorated with triton\.jit"):
        compile_kernel(kernel, HOPPER, {})


def test_disassembles_once_and_only_when_sass_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disassembled: list[bytes] = []

    def disassemble(cubin: bytes) -> str:
        disassembled.append(cubin)
        return "SASS"

    monkeypatch.setattr(nvidia, "disassemble", disassemble)
    assembly = compile_row(HOPPER).assembly
    assert "sass" in assembly
    assert disassembled == []
    assert (assembly["sass"], assembly["sass"]) == ("SASS", "SASS")
    assert len(disassembled) == 1
