"""The gradients of few queries and many keys: who computes them, that they are right everywhere, and that they fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from differentiation import forward_and_backward
from on_hopper import attention_leaves, names_launched

import tilesmith as ts
from covering import covering
from tilesmith.ops.attention import SPEC, attention, forms
from tilesmith.ops.attention.kernels.decode_backward import MOST_ROWS, DecodeBackward
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.spec import Inputs
from tilesmith.toolchain.compiler import Target, compile_kernel

KERNEL, SUM = "attention_decode_backward_kernel", "attention_add_splits_kernel"
OPTIONS: dict[str, Inputs] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (99, 3)},
    "capped": {"causal": True, "softcap": 2.0},
}


def backward_launches(
    group: int = 1, queries: int = 1, keys: int = 4096, head: int = 64, batch: int = 1, *, target: str = "cuda:90",
    dtype: torch.dtype = torch.bfloat16, **options: Any,
) -> dict[str, PlannedLaunch]:  # fmt: skip
    q = torch.empty(batch, 2 * group, queries, head, dtype=dtype, device="meta", requires_grad=True)
    k = torch.empty(batch, 2, keys, head, dtype=dtype, device="meta", requires_grad=True)
    with ts.use("triton"), recorded_plans(target) as plans:
        output = attention(q, k, k, **options)
        before = len(plans)
        torch.autograd.grad(output, (q, k), torch.empty_like(output))
    return {launch.kernel.__name__: launch for plan in plans[before:] for launch in plan.launches}


class TestWhoComputes:
    @pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
    @pytest.mark.parametrize(("group", "queries"), [(1, 1), (8, 1), (4, 5), (32, 1)])
    def test_these_kernels_compute_few_queries(self, group: int, queries: int, target: str) -> None:
        assert set(backward_launches(group, queries, target=target)) == {KERNEL, SUM}

    def test_few_keys_or_enough_programs_need_no_sum(self) -> None:
        assert set(backward_launches(keys=256)) == {KERNEL}
        assert set(backward_launches(batch=500)) == {KERNEL}

    @pytest.mark.parametrize(
        "other",
        [{"queries": MOST_ROWS + 1}, {"group": MOST_ROWS + 1}, {"queries": 8, "keys": 31}, {"dtype": torch.float32},
         {"head": 60}, {"dropout": 0.1}, {"group": 32, "head": 256, "target": "cuda:80"}],
        ids=["queries", "group", "not many keys", "single precision", "rows of no whole units", "dropout", "registers"],
    )  # fmt: skip
    def test_others_compute_the_rest(self, other: dict[str, Any]) -> None:
        assert KERNEL not in backward_launches(**other)

    def test_a_bias_is_left_to_others(self) -> None:
        bias = torch.empty(2, 1, 4096, dtype=torch.bfloat16, device="meta")
        assert KERNEL not in backward_launches(bias=bias)


@pytest.fixture
def only_this_form(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(forms, "BACKWARD", [DecodeBackward()])
    dispatch.forget()
    yield
    dispatch.forget()


@covering(
    head=[16, 40, 64, 72, 160],
    lengths=[(1, 300), (3, 12), (2, 2100), (5, 700)],
    groups=[(1, 2), (5, 1), (3, 2)],
    option=list(OPTIONS),
    dtype=[torch.float16, torch.bfloat16],
)
def test_gradients_match_float64(
    head: int, lengths: tuple[int, int], groups: tuple[int, int], option: str, dtype: torch.dtype, only_this_form: None
) -> None:
    torch.manual_seed(0)
    (queries, keys), (group, key_heads) = lengths, groups
    shapes = {"q": (queries, group * key_heads), "k": (keys, key_heads), "v": (keys, key_heads)}
    given: Inputs = {
        name: torch.randn(2, rows, heads, head, dtype=dtype).transpose(1, 2) for name, (rows, heads) in shapes.items()
    }
    given |= OPTIONS[option]
    with ts.use("interpret"), ts.ops.configured(programs_per_multiprocessor=1000):  # a split for every block of keys
        ours = forward_and_backward(attention, given)
    doubled = {name: one.double() if isinstance(one, torch.Tensor) else one for name, one in given.items()}
    for name, right in forward_and_backward(SPEC.reference, doubled).items():
        assert (ours[name].double() - right).norm() <= 2 * torch.finfo(dtype).eps * right.norm(), name


def test_keys_that_nobody_sees_have_gradients_of_zero(only_this_form: None) -> None:
    q, k, v = (torch.randn(1, 2, rows, 32, dtype=torch.float16, requires_grad=True) for rows in (3, 600, 600))
    with ts.use("interpret"):
        output = attention(q, k, v, window=(10, 0))
        gradients = torch.autograd.grad(output, (k, v), torch.ones_like(output))
    for gradient in gradients:
        assert gradient[:, :, : 597 - 10].abs().max() == 0
        assert gradient[:, :, 597 - 10 :].abs().amax(-1).min() > 0


@pytest.mark.parametrize("target", ["cuda:90", pytest.param("cuda:80", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("group", "head"), [(1, 64), (8, 128), (32, 128), (16, 256)])
def test_compiles_without_spilling_and_fits(group: int, head: int, target: str) -> None:
    launch = backward_launches(group, head=head, target=target)[KERNEL]
    assert launch.arguments["WALK"] == ("described" if target == "cuda:90" else "near")
    binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
    assert binary.shared_bytes <= 160 * 1024


SIZES = {  # batch, heads, key heads, queries, keys, head size
    "few-keys": (23, 28, 4, 1, 128, 96),
    "unsplit": (140, 8, 8, 1, 1000, 64),
    "split": (2, 32, 8, 1, 5000, 128),
    "several-queries": (2, 16, 4, 5, 3001, 96),
    "most-rows": (1, 64, 2, 1, 2047, 128),
    "padded-head": (5, 12, 6, 1, 4095, 72),
    "narrow": (2, 4, 4, 2, 999, 32),
    "wide": (2, 16, 2, 1, 752, 160),
    "widest": (1, 16, 1, 2, 2000, 256),
}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("option", "dtype"), [*((option, torch.bfloat16) for option in OPTIONS), ("causal", torch.float16)], ids=str
)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_results_are_within_twice_the_error_of_pytorch(
    sizes: tuple[int, ...], option: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves, doutput = attention_leaves(sizes, dtype)
    launched = names_launched(monkeypatch)

    def gradients(op: Any, given: list[torch.Tensor], gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(op(*given, **OPTIONS[option]), given, gradient)

    with ts.use("triton"):
        ours = gradients(attention, leaves, doutput)
        assert KERNEL in launched
        again = gradients(attention, leaves, doutput)
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))
    theirs = gradients(SPEC.reference, leaves, doutput)
    rights = gradients(SPEC.reference, [leaf.detach().double().requires_grad_() for leaf in leaves], doutput.double())
    for one, their, right in zip(ours, theirs, rights, strict=True):
        assert (one.double() - right).norm() <= 2 * (their.double() - right).norm() + 1e-6 * right.norm()
