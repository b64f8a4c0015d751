"""Forms of AMD instructions, some of which small kernels do not produce."""

import pytest

from tilesmith.toolchain.compiler.amd import read_facts
from tilesmith.toolchain.compiler.assembly import Facts


def facts_of(instruction: str) -> Facts:
    return read_facts(
        f'\t.file\t1 "/home" "kernel.py"\n\t.loc\t1 7 9\n\t{instruction}\n'
        "    .private_segment_fixed_size: 0\n    .sgpr_count:     20\n    .vgpr_count:     24\n"
    )


@pytest.mark.parametrize(
    ("instruction", "kind", "vector_bytes"),
    [
        ("global_load_dwordx4 v[2:5], v[0:1], off", "load", 16),
        ("global_load_dwordx3 v[2:4], v[0:1], off", "load", 12),
        ("buffer_load_dwordx2 v[2:3], v1, s[4:7], 0 offen", "load", 8),
        ("flat_load_dword v2, v[0:1]", "load", 4),
        ("buffer_load_ushort v2, v1, s[4:7], 0 offen", "load", 2),
        ("global_load_short_d16_hi v2, v[0:1], off", "load", 2),
        ("global_load_ubyte v2, v[0:1], off", "load", 1),
        ("global_load_b128 v[2:5], v[0:1], off", "load", 16),
        ("buffer_load_u8 v2, v1, s[4:7], 0 offen", "load", 1),
        ("buffer_store_short v2, v1, s[4:7], 0 offen", "store", 2),
        ("global_store_dwordx4 v[0:1], a[2:5], off", "store", 16),
        ("buffer_atomic_add v2, v1, s[4:7], 0 offen", "atomic", 4),
        ("global_atomic_pk_add_bf16 v[0:1], v2, off", "atomic", 4),
        ("global_atomic_add_f64 v[0:1], v[2:3], off", "atomic", 8),
        ("global_atomic_cmpswap_x2 v[0:1], v[0:1], v[2:5], off", "atomic", 8),
        ("buffer_load_something_new v2, v1, s[4:7], 0 offen", "load", 0),
    ],
)
def test_global_access(instruction: str, kind: str, vector_bytes: int) -> None:
    (access,) = facts_of(instruction).accesses
    assert (access.kind, access.vector_bytes, access.count) == (kind, vector_bytes, 1)
    assert (access.file, access.line) == ("/home/kernel.py", 7)


@pytest.mark.parametrize(
    ("instruction", "size"),
    [
        ("scratch_store_dwordx4 off, v[2:5], off offset:356 ; 16-byte Folded Spill", 16),
        ("scratch_load_dword v2, off, off ; 4-byte Folded Reload", 4),
        ("buffer_store_dword v2, off, s[96:99], 0 offset:4 ; 4-byte Folded Spill", 4),
    ],
)
def test_spills_are_no_global_access(instruction: str, size: int) -> None:
    facts = facts_of(instruction)
    assert (facts.spill_bytes, facts.accesses) == (size, ())


@pytest.mark.parametrize(
    "instruction", ["ds_read_b128 v[0:3], v4", "scratch_store_dword off, v2, off", "s_load_dwordx4 s[0:3], s[4:5], 0x0"]
)
def test_other_memory_is_not_global(instruction: str) -> None:
    assert facts_of(instruction).accesses == ()


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("buffer_load_dword v1, s[4:7], 0 offen lds", True),
        ("global_load_lds_dwordx4 v[0:1], off", True),
        ("buffer_load_dword v1, v2, s[4:7], 0 offen", False),
    ],
)
def test_copies_straight_to_shared_memory(instruction: str, expected: bool) -> None:
    assert facts_of(instruction).async_copies is expected


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], 0", True),
        ("v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", True),
        ("v_fma_f32 v0, v1, v2, v3", False),
    ],
)
def test_matrix_instructions(instruction: str, expected: bool) -> None:
    assert facts_of(instruction).tensor_cores is expected
