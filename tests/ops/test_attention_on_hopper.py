"""Attention with specialised warps: when it is chosen, and on a GPU of that kind that it is right at every edge."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from specialisation import planned_launches

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.attention import hopper_forward
from tilesmith.ops.attention.hopper_forward import LEAST_LENGTH
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.spec import CONTIGUOUS
from tilesmith.toolchain import launcher

KERNEL = "attention_hopper_forward_kernel"
spec = SPECS["attention"]
attention = spec.op


def kernels_for(
    target: str = "cuda:90", case: str = "causal-128", dtype: torch.dtype = torch.bfloat16, **sizes: int
) -> set[str]:
    launches = planned_launches(spec, spec.case(case).with_sizes(**sizes), dtype, CONTIGUOUS, target)
    return {launch.kernel.__name__ for launch in launches}


class TestWhoComputes:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("case", ["causal-128", "full-128"])
    def test_it_does_for_long_sequences_of_wide_heads(self, case: str, dtype: torch.dtype) -> None:
        assert KERNEL in kernels_for(case=case, dtype=dtype)

    @pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
    def test_only_hopper_has_the_instructions(self, target: str) -> None:
        assert KERNEL not in kernels_for(target)

    @pytest.mark.parametrize(
        "other",
        [
            {"dtype": torch.float32},
            {"case": "causal-64"},
            {"queries": LEAST_LENGTH - 1, "keys": LEAST_LENGTH - 1},
        ],
        ids=["single-precision", "narrow-heads", "short"],
    )
    def test_the_plain_form_does_for_the_rest(self, other: dict[str, Any]) -> None:
        assert KERNEL not in kernels_for(**other)

    @pytest.mark.parametrize("option", ["bias", "mask", "softcap", "dropout", "window", None])
    def test_what_is_done_to_scores_is_left_to_the_plain_form(self, option: str | None) -> None:
        q = torch.empty(1, 2, LEAST_LENGTH, 128, dtype=torch.bfloat16, device="meta")
        options: dict[str, Any] = {
            "bias": q.new_empty(2, LEAST_LENGTH, LEAST_LENGTH), "softcap": 30.0, "dropout": 0.1, "window": (64, 0),
            "mask": torch.ones(1, LEAST_LENGTH, dtype=torch.bool, device="meta"),
        }  # fmt: skip
        with recorded_plans() as plans:
            attention(q, q, q, **({option: options[option]} if option else {}))
        launched = {launch.kernel.__name__ for plan in plans for launch in plan.launches}
        assert launched
        assert (KERNEL in launched) is (option is None)

    def test_the_interpreter_is_given_the_plain_form(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hopper_forward, "LEAST_LENGTH", 64)  # it would take seconds for as many as there must be
        q, k, v = (torch.randn(1, 1, 64, 128, dtype=torch.float16) for _ in range(3))
        with ts.use("interpret"):
            ours = attention(q, k, v, causal=True)
        torch.testing.assert_close(ours.float(), spec.reference(q, k, v, causal=True).float(), atol=2e-3, rtol=0)


SIZES = {  # batch, heads, key heads, queries, keys, head size
    "whole-blocks": (1, 2, 2, 1024, 1024, 128),
    "a-row-more": (2, 2, 2, 1025, 1025, 128),
    "a-row-less": (1, 2, 2, 1151, 1151, 128),
    "grouped": (2, 6, 2, 1500, 1500, 128),
    "more-keys": (1, 2, 1, 1027, 1539, 128),
    "some-see-nothing": (1, 2, 2, 1539, 1027, 128),
    "narrower-heads": (1, 3, 3, 1100, 1100, 80),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_is_as_exact_as_the_plain_form_with_gradients(
    sizes: tuple[int, ...], causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU")
    batch, heads, key_heads, queries, keys, head = sizes
    torch.manual_seed(0)
    # As projections leave them: heads are no neighbours of themselves in memory.
    q = torch.randn(batch, queries, heads, head, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
    k, v = (
        torch.randn(batch, keys, key_heads, head, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
        for _ in range(2)
    )
    doubled = [one.detach().double().requires_grad_() for one in (q, k, v)]
    right = spec.reference(*doubled, causal=causal)
    doutput = torch.randn_like(right)
    right_gradients = torch.autograd.grad(right, doubled, doutput)

    launched: list[str] = []
    monkeypatch.setattr(launcher, "listeners", [lambda launch: launched.append(launch.kernel.__name__)])

    def errors() -> list[float]:
        launched.clear()
        with ts.use("triton"):
            made = attention(q, k, v, causal=causal)
        gradients = torch.autograd.grad(made, (q, k, v), doutput.to(dtype))
        pairs = zip((made, *gradients), (right, *right_gradients), strict=True)
        assert made.isfinite().all()
        return [float((ours.double() - correct).norm() / correct.norm()) for ours, correct in pairs]

    specialised = errors()
    assert KERNEL in launched
    # By its module's full name: `tilesmith.ops.attention` is the operator.
    monkeypatch.setattr(sys.modules["tilesmith.ops.attention.operator"], "suits_hopper", lambda plan, problem: False)
    dispatch.forget()
    plain = errors()
    assert KERNEL not in launched
    dispatch.forget()
    assert all(one <= 1.1 * other for one, other in zip(specialised, plain, strict=True)), (specialised, plain)
