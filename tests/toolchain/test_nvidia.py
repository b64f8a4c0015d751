"""Forms of PTX and SASS instructions, some of which small kernels do not produce."""

import pytest

from tilesmith.toolchain.compiler.nvidia import global_accesses, local_traffic

DESTINATION_AND_SOURCE = "[%r2], [%rd1, {%r3, %r4}]"


@pytest.mark.parametrize(
    ("instruction", "kind", "vector_bytes"),
    [
        ("ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", "load", 16),
        ("@%p1 ld.global.L1::evict_last.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];", "load", 8),
        ("ld.global.v8.b32 { %r1, %r2 }, [ %rd1 + 0 ];", "load", 32),
        ("@!%p1 ld.acquire.gpu.global.b64 %rd2, [%rd1];", "load", 8),
        ("st.global.b16 [ %rd1 + 0 ], { %rs1 };", "store", 2),
        ("st.relaxed.gpu.global.u8 [%rd1], %r2;", "store", 1),
        ("atom.global.gpu.acq_rel.add.noftz.f16x2 %r1, [ %rd1 + 0 ], %r2;", "atomic", 4),
        ("red.global.add.v2.f32 [%rd1], {%r1, %r2};", "atomic", 8),
        ("@%p1 cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;", "load", 16),
        ("cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4;", "load", 4),
        (
            f"cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes {DESTINATION_AND_SOURCE};",
            "load",
            16,
        ),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r3, %r5}], [%r2];", "store", 16),
        ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%rd1, {%r3}], [%r2];", "atomic", 16),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global [%rd1, {%r3, %r4}];", "load", 16),
        ("ld.global.something_new %r1, [%rd1];", "load", 0),
    ],
)
def test_global_access(instruction: str, kind: str, vector_bytes: int) -> None:
    ptx = f'\t.loc\t1 7 9\n\t{instruction}\n\t.file\t1 "/home/kernel.py"\n'
    (access,) = global_accesses(ptx)
    assert (access.kind, access.vector_bytes, access.count) == (kind, vector_bytes, 1)
    assert (access.file, access.line) == ("/home/kernel.py", 7)


@pytest.mark.parametrize(
    "instruction", ["ld.shared.v4.b32 {%r1}, [%r2];", "ld.param.b64 %rd1, [k_param_0];", "st.local.b32 [%SPL], %r1;"]
)
def test_other_memory_is_not_global(instruction: str) -> None:
    assert global_accesses(f"\t{instruction}") == ()


def test_lines_inside_inline_assembly_are_those_of_the_statement() -> None:
    ptx = (
        '.file 1 "k.py"\n.loc 1 7 9\n// begin inline asm\n.loc 1 7 9\nmov.u32 %r1, 0x0;\n.loc 1 8 9\n'
        "ld.global.b32 { %r1 }, [ %rd1 + 0 ];\n// end inline asm\n.loc 1 9 1\nst.global.b32 [%rd1], %r1;\n"
    )
    assert [access.line for access in global_accesses(ptx)] == [7, 9]


@pytest.mark.parametrize(
    ("instruction", "size"),
    [("STL", 4), ("LDL.LU", 4), ("STL.64", 8), ("LDL.LU.128", 16), ("STL.U16", 2), ("LDL.S8", 1)],
)
def test_local_traffic_counts_each_width(instruction: str, size: int) -> None:
    line = f"        /*0100*/  @!P0 {instruction} [R1+0x8], R10 ;\n"
    assert local_traffic(3 * line) == 3 * size
