# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels have no type annotations, since Triton interprets annotations itself.
"""Counting the sectors of the loads and stores of a launch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tilesmith.cli.operator_source import planned, with_fields
from tilesmith.lab import transactions as module
from tilesmith.lab.transactions import Transactions, transactions
from tilesmith.ops import SPECS
from tilesmith.spec import Case
from tilesmith.toolchain.compiler import DEFAULT_TARGETS, compile_kernel

HOPPER, CDNA3 = DEFAULT_TARGETS


@triton.jit
def copy_kernel(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n_elements
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=mask), mask=mask)


@triton.jit
def columns_kernel(x_ptr, n_columns, total_ptr, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    total = tl.load(x_ptr + rows * n_columns + tl.program_id(0))
    tl.store(total_ptr + tl.program_id(0), tl.sum(total))


@triton.jit
def same_number_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places * 0))


@triton.jit
def counting_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(x_ptr + tl.arange(0, BLOCK), 1.0)


def counted(kernel, grid: tuple[int, int, int], target=HOPPER, **arguments: object) -> Transactions:
    binary = compile_kernel(kernel, target, arguments, num_warps=4, enable_fp_fusion=True)
    return transactions(kernel, grid, arguments, binary)


def copied(n_elements: int, block: int = 1024) -> Transactions:
    x, y = torch.zeros(n_elements), torch.zeros(n_elements)
    grid = (triton.cdiv(n_elements, block), 1, 1)
    return counted(copy_kernel, grid, x_ptr=x, y_ptr=y, n_elements=n_elements, BLOCK=block)


def test_contiguous_copy_has_ideal_sectors() -> None:
    # 1024 floats in 16-byte vectors are 8 requests of 32 × 16 = 512 bytes, 16 sectors each; loaded and stored.
    assert copied(1024) == Transactions(sectors=2 * 8 * 16, ideal=2 * 8 * 16, sampled=1, programs=1, unknown=())
    assert copied(4096).sectors * 32 == 2 * 4 * 4096


def test_column_walk_takes_one_sector_per_element() -> None:
    found = counted(columns_kernel, (2, 1, 1), x_ptr=torch.zeros(128, 64), n_columns=64,
                    total_ptr=torch.zeros(2), BLOCK=128)  # fmt: skip
    # Each of 4 warps requests 32 floats, 256 bytes apart; one sum is stored. Packed floats take 4 sectors.
    assert found.sectors == 2 * (4 * 32 + 1)
    assert found.ideal == 2 * (4 * 4 + 1)


def test_a_masked_tail_counts_active_lanes_only() -> None:
    assert copied(1008).sectors == 2 * 1008 * 4 // 32


def test_a_mask_that_splits_vectors_multiplies_requests() -> None:
    # An odd length may end inside a vector, so four instructions of 4 bytes request the same sectors in turn.
    found = copied(1000)
    assert (found.sectors, found.ideal) == (4 * 2 * 125, 2 * 8 * 4 * 4)


def test_a_masked_tail_is_not_scaled() -> None:
    found = copied(63 * 1024 + 16)
    assert (found.sampled, found.programs) == (8, 64)
    assert found.sectors == 2 * (63 * 128 + 2)


def test_sampled_programs_scale_to_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = copied(100 * 256, block=256)
    monkeypatch.setattr(module, "MOST_PROGRAMS", 100)
    whole = copied(100 * 256, block=256)
    assert (sample.sampled, whole.sampled) == (8, 100)
    assert sample.sectors == whole.sectors == 2 * 100 * 256 * 4 // 32


def test_replicated_loads_count_once_per_warp() -> None:
    found = counted(same_number_kernel, (1, 1, 1), x_ptr=torch.zeros(1), y_ptr=torch.zeros(128), BLOCK=128)
    assert found.sectors == 4 + 16
    # 64 floats are too few for 4 warps: each is loaded twice and stored once.
    assert copied(64, block=64).sectors == 2 * 8 + 8


def test_every_dimension_of_the_grid_is_walked() -> None:
    assert module._sample((2, 2, 2)) == [(x, y, z) for z in (0, 1) for y in (0, 1) for x in (0, 1)]
    sample = module._sample((10, 10, 10))
    assert (sample[0], sample[-1], len(set(sample))) == ((0, 0, 0), (9, 9, 9), 8)


def test_binary_cached_from_another_folder_is_matched() -> None:
    x, y = torch.zeros(1024), torch.zeros(1024)
    arguments = {"x_ptr": x, "y_ptr": y, "n_elements": 1024, "BLOCK": 1024}
    binary = compile_kernel(copy_kernel, HOPPER, arguments, num_warps=4, enable_fp_fusion=True)
    moved = replace(
        binary,
        accesses=tuple(replace(one, file=f"/elsewhere/{Path(one.file).name}") for one in binary.accesses),
        assembly={"ttgir": binary.assembly["ttgir"].replace(str(Path(__file__).parent), "/elsewhere")},
    )
    assert transactions(copy_kernel, (1, 1, 1), arguments, moved) == copied(1024)


def test_uncounted_accesses_are_listed() -> None:
    found = counted(counting_kernel, (1, 1, 1), x_ptr=torch.zeros(128), BLOCK=128)
    assert found.sectors == 0
    (place,) = found.unknown
    assert place.startswith("atomic at test_transactions.py:")


def test_uncounted_access_stops_the_trace() -> None:
    programs_followed = torch.zeros(128)
    assert counted(counting_kernel, (8, 1, 1), x_ptr=programs_followed, BLOCK=128).unknown
    assert (programs_followed == 1).all()


def test_amd_binary_raises() -> None:
    with pytest.raises(ValueError, match="NVIDIA"):
        counted(copy_kernel, (1, 1, 1), CDNA3, x_ptr=torch.zeros(64), y_ptr=torch.zeros(64), n_elements=64, BLOCK=64)


@pytest.mark.parametrize(("block_size", "kernel", "readings"), [
    (512, "rms_norm_forward_kernel", 1), (256, "rms_norm_forward_blocks_kernel", 2),
])  # fmt: skip
def test_rms_norm_reads_its_rows_once_in_registers_and_twice_in_blocks(
    block_size: int, kernel: str, readings: int
) -> None:
    rows, columns = 1024, 512
    with with_fields(BLOCK_SIZE=block_size, ROWS=1):
        (launch,) = planned(SPECS["rms_norm"], Case("one", rows=rows, cols=columns), torch.bfloat16, "fwd", "cuda:90")
    matrix, weight = rows * columns * 2 // 32, columns * 2 // 32
    assert launch["kernel"] == kernel
    assert launch["sectors"] == launch["ideal_sectors"] == (readings + 1) * matrix + rows * weight
    assert launch["sectors_note"] == "8 programs were sampled"


def test_large_tensors_are_counted_by_sampling() -> None:
    rows, columns = 2**15, 2**13
    (launch,) = planned(SPECS["silu"], Case("large", rows=rows, cols=columns), torch.bfloat16, "fwd", "cuda:90")
    assert launch["sectors"] == 2 * rows * columns * 2 // 32


def test_too_large_programs_get_a_note() -> None:
    case = Case("large", rows=2**18, cols=4096)
    launch = planned(SPECS["rms_norm"], case, torch.bfloat16, "bwd", "cuda:90")[0]
    assert launch["kernel"] == "rms_norm_backward_kernel", "persistent: each of its few programs walks many rows"
    assert (launch["sectors"], launch["sectors_note"]) == (None, "too large to trace")


def test_tensors_beyond_memory_get_a_note() -> None:
    (launch,) = planned(SPECS["silu"], Case("vast", rows=2**33, cols=2**13), torch.bfloat16, "fwd", "cuda:90")
    assert (launch["sectors"], launch["sectors_note"]) == (None, "too large to trace")


def test_amd_targets_get_a_note() -> None:
    (launch,) = planned(SPECS["silu"], Case("small", rows=4, cols=64), torch.bfloat16, "fwd", "hip:gfx942")
    assert (launch["sectors"], launch["sectors_note"]) == (None, "counted for NVIDIA GPUs only")
