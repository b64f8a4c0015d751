# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""Bank conflicts in shared memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tilesmith.toolchain.compiler import Target, compile_kernel
from tilesmith.toolchain.compiler.shared import _found, shared_accesses, wavefronts

LANES = np.arange(32)


@triton.jit
def transpose_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + rows * BLOCK + columns)
    tl.store(y_ptr + columns * BLOCK + rows, x)


@pytest.mark.parametrize(
    ("addresses", "width", "turns"),
    [
        (LANES * 4, 4, 1),  # a row
        (LANES * 32 * 4, 4, 32),  # a column of 32 floats
        (LANES * 33 * 4, 4, 1),  # the same, padded by one
        (LANES * 0, 4, 1),  # one word for all
        (LANES * 16, 16, 4),  # a row of vectors
        (LANES * 8, 8, 2),
        (LANES * 2, 2, 1),
    ],
)
def test_wavefronts(addresses: np.ndarray, width: int, turns: int) -> None:
    assert wavefronts(addresses, width) == turns


def test_addresses_follow_from_the_threads_number() -> None:
    ptx = """
	.loc 1 7 3
	mov.u32 	%r1, %tid.x;
	shl.b32 	%r2, %r1, 7;
	and.b32  	%r3, %r1, 1;
	bfe.s32 	%r4, %r1, 0, 1;
	and.b32  	%r5, %r4, 128;
	mov.b32 	%r6, global_smem;
	add.s32 	%r7, %r6, %r2;
	st.shared.b32 	[%r7], %r9;
	add.s32 	%r8, %r6, %r5;
	ld.shared.b32 	%r10, [%r8+4];
	ld.shared.b32 	%r11, [%r10];
"""
    found = [(kind, place.line, needed, ideal) for kind, place, needed, ideal in _found(ptx)]
    # A stride of 128 bytes hits one bank: 32 wavefronts for 32 words, 2 for 2. A loaded address is unknown.
    assert found == [("store", 7, 32, 1), ("load", 7, 2, 1)]


@pytest.mark.parametrize("constant", ["0xFFFFFFFFFFFFFFFF", "18446744073709551615", "-9223372036854775808"])
def test_constants_of_64_bits_do_not_overflow(constant: str) -> None:
    ptx = f"""
	.loc 1 7 3
	mov.u32 	%r1, %tid.x;
	mov.b64 	%rd1, {constant};
	xor.b64 	%rd2, %rd1, {constant};
	shl.b32 	%r2, %r1, 2;
	st.shared.b32 	[%r2], %r9;
"""
    assert [(kind, needed) for kind, _place, needed, _ideal in _found(ptx)] == [("store", 1)]


@pytest.mark.filterwarnings("error")
def test_division_by_a_number_unknown_here_is_no_warning() -> None:
    ptx = """
	.loc 1 7 3
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r2, %ntid.x;
	div.u32 	%r3, %r1, %r2;
	shl.b32 	%r4, %r1, 2;
	st.shared.b32 	[%r4], %r3;
"""
    assert [(kind, needed) for kind, _place, needed, _ideal in _found(ptx)] == [("store", 1)]


@pytest.mark.parametrize("capability", [80, 90])
def test_the_compiler_avoids_conflicts_in_a_transpose(capability: int) -> None:
    tensors = {"x_ptr": torch.empty(32, 32), "y_ptr": torch.empty(32, 32)}
    binary = compile_kernel(
        transpose_kernel, Target("cuda", capability), {**tensors, "BLOCK": 32}, enable_fp_fusion=True
    )
    accesses = shared_accesses(binary)
    assert {one.kind for one in accesses} == {"load", "store"}
    # 32 × 32 floats are 32 wavefronts, for each of 4 warps 8.
    assert all(one.wavefronts == one.ideal_wavefronts == 8 for one in accesses)


def test_other_vendors_have_no_shared_accesses() -> None:
    tensors = {"x_ptr": torch.empty(32, 32), "y_ptr": torch.empty(32, 32)}
    binary = compile_kernel(transpose_kernel, Target("hip", "gfx942"), {**tensors, "BLOCK": 32}, enable_fp_fusion=True)
    assert shared_accesses(binary) == ()
