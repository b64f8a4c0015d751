"""An autotuner's key must tell apart the sizes that have different candidates."""

from __future__ import annotations

from types import FunctionType

import torch
import triton
import triton.language as tl

from tilesmith.workshop.checking.evaded_work import key_too_coarse, size_without_key
from tilesmith.workshop.checking.traced_call import TracedCall, Tuned

SMALL, LARGE = triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})


@triton.autotune(configs=[SMALL, LARGE], key=["inner"])  # type: ignore[untyped-decorator]  # Triton ships no types
@triton.jit  # type: ignore[untyped-decorator]  # likewise
def kernel(x_ptr, rows, inner, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # device code
    tl.store(x_ptr + tl.arange(0, BLOCK), rows + inner)


def function() -> None:
    """Stands for the learner's function: its module has the autotuner."""


def call(rows: int, inner: int, config: triton.Config, dtype: str = "torch.float16") -> TracedCall:
    return TracedCall(candidates=(config,), tuned=Tuned(kernel.fn, {"rows": rows, "inner": inner}, (dtype,)))


def test_same_key_with_other_candidates_is_named_with_both_sizes() -> None:
    reason = key_too_coarse(function, [call(32, 64, SMALL), call(128, 64, LARGE)])
    assert reason is not None
    assert "key ['inner'] is the same for two sizes (rows = 32, inner = 64; rows = 128, inner = 64)" in reason


def test_same_key_with_the_same_candidates_other_keys_and_other_dtypes_pass() -> None:
    calls = [call(32, 64, SMALL), call(33, 64, SMALL), call(128, 128, LARGE), call(128, 64, LARGE, "torch.float32")]
    assert key_too_coarse(function, [*calls, TracedCall()]) is None


def tuned_by_inner(x: torch.Tensor) -> None:
    kernel[(1,)](x, *x.shape)


def test_key_without_a_size_of_the_model_is_named() -> None:
    def larger() -> dict[str, dict[str, torch.Tensor]]:
        return {"rows": {"x": torch.ones(32, 4)}, "inner": {"x": torch.ones(2, 64)}}

    inputs = {"x": torch.ones(2, 4)}
    by_both = triton.autotune(configs=[SMALL, LARGE], key=["rows", "inner"])(kernel.fn)
    model = FunctionType(tuned_by_inner.__code__, {**globals(), "kernel": by_both})
    reason = size_without_key(tuned_by_inner, model, inputs, larger, times=16)
    assert reason is not None
    assert "key ['inner'] does not change with rows" in reason
    assert size_without_key(model, tuned_by_inner, inputs, larger, times=16) is None
    assert size_without_key(model, model, inputs, larger, times=16) is None
