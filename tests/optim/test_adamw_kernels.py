"""The kernels of AdamW: alignment, block sizes, registers and vector accesses."""

from __future__ import annotations

import pytest
import torch
from adamw_steps import DTYPES, ROUNDINGS, assert_same, give_gradients, parameters, step

from covering import covering
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.plan import Plan, planning_for
from tilesmith.optim import AdamW
from tilesmith.optim.address_tables import plan_of
from tilesmith.toolchain.compiler import Target, compile_kernel

TARGETS = ("cuda:90", "cuda:80", "hip:gfx942")


def test_unaligned_addresses_have_a_separate_launch(runs: list[Plan]) -> None:
    ours, theirs = AdamW(parameters()), torch.optim.AdamW(parameters())
    for optimizer in (ours, theirs):
        step(optimizer, 1)
        ones = optimizer.param_groups[0]["params"]
        give_gradients(ones, 1)
        ones[3].grad = torch.cat([torch.zeros(1), ones[3].grad])[1:]
        optimizer.step()
        step(optimizer, 1, first=2)
    assert_same(ours, theirs, ROUNDINGS[torch.float32])
    flags = [plan.launches[1].arguments["ALIGNED"] for plan in runs]
    assert flags == [True, True, False, True]


@pytest.mark.parametrize("turns", [1, 3])
def test_any_block_size_gives_the_same_result(turns: int) -> None:
    ours, theirs = AdamW(parameters()), torch.optim.AdamW(parameters())
    with dispatch.configured(BLOCK_SIZE=64, TURNS=turns, num_warps=1):
        step(ours, 2)
    step(theirs, 2)
    assert_same(ours, theirs, 4)


@covering(times=2, target=TARGETS, dtype=DTYPES, aligned=[True, False])
def test_kernels_do_not_spill(target: str, dtype: torch.dtype, aligned: bool) -> None:
    with planning_for(target):
        plan, firsts = plan_of((1 << 20,) * 300, 512, torch.device("meta"), dtype, aligned, -TARGETS.index(target) - 1)
    assert len(plan.launches) == 2
    assert firsts[1] > 1
    for launch in plan.launches:
        binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unmasked_blocks_move_16_bytes_per_access(dtype: torch.dtype) -> None:
    plan, _ = plan_of((1 << 20,) * 3, 16, torch.device("meta"), dtype, True, 0)
    launch = plan.launches[1]
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    wide = [
        line
        for line in binary.assembly["ptx"].splitlines()
        if "global" in line and ("v4.b32" in line or "v2.b64" in line)
    ]
    threads = 32 * launch.config.num_warps
    vectors = launch.config.fields()["BLOCK_SIZE"] * dtype.itemsize // (16 * threads)
    assert sum(" ld.global" in line or "\tld.global" in line for line in wide) >= 4 * vectors
    assert sum(" st.global" in line or "\tst.global" in line for line in wide) >= 3 * vectors
