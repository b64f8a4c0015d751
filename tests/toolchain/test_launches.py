"""Recorded launches, with a stand-in for Triton's launch, which needs a GPU."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,attr-defined"
# Kernels have no Python types.

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from tilesmith.toolchain.launches import seen_launches


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


@pytest.fixture
def fake_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        metadata = SimpleNamespace(num_warps=options.get("num_warps", 4), num_stages=3, shared=128)
        return SimpleNamespace(metadata=metadata, n_regs=40, n_spills=2)

    monkeypatch.setattr(JITFunction, "run", run)


@pytest.mark.usefixtures("fake_launch")
def test_sees_constants_and_what_the_compiler_made() -> None:
    with seen_launches() as seen:
        copy_kernel[(4,)](None, None, 100, BLOCK_SIZE=128, num_warps=8)
        copy_kernel[(4,)](None, None, 100, 128, num_warps=8)
        copy_kernel[lambda constants: (2,)](None, None, 100, BLOCK_SIZE=64)
    assert [(one.grid, one.constants, one.num_warps) for one in seen] == [
        ((4,), {"BLOCK_SIZE": 128}, 8),
        (None, {"BLOCK_SIZE": 64}, 4),
    ]
    assert (seen[0].kernel, seen[0].registers, seen[0].spill_bytes, seen[0].shared_bytes) == ("copy_kernel", 40, 8, 128)


@pytest.mark.usefixtures("fake_launch")
def test_leaves_triton_as_it_was() -> None:
    before = JITFunction.run
    with seen_launches() as seen:
        pass
    copy_kernel[(1,)](None, None, 1, BLOCK_SIZE=16)
    assert JITFunction.run is before
    assert seen == []


@pytest.mark.gpu
def test_sees_a_real_launch() -> None:
    x = torch.randn(100, device="cuda")
    y = torch.empty_like(x)
    with seen_launches() as seen:
        copy_kernel[(1,)](x, y, 100, BLOCK_SIZE=128, num_warps=2)
    assert torch.equal(x, y)
    (launch,) = seen
    assert launch.constants == {"BLOCK_SIZE": 128}
    assert launch.num_warps == 2
    assert launch.registers is not None
    assert launch.registers > 0
    assert launch.spill_bytes == 0
