"""Attention with heads of more than 128 elements: who computes it, that it is right at every edge, and that it fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differentiation import forward_and_backward
from on_hopper import attention_leaves, names_launched, only_on_hopper
from specialisation import planned_launches

import tilesmith as ts
from covering import covering
from tilesmith.ops.attention import SPEC, attention
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.spec import CONTIGUOUS, Inputs
from tilesmith.toolchain.compiler import Target, compile_kernel
from tilesmith.toolchain.versions import triton_version

BACKWARD = {"attention_wide_dq_kernel", "attention_wide_key_gradient_kernel"}
WIDE = {"attention_wide_forward_kernel"} | BACKWARD
OPTIONS: dict[str, Inputs] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (9, 3)},
    "capped": {"causal": True, "softcap": 2.0},
}


def heads(
    head: int, *, queries: int = 70, keys: int = 70, of_queries: int = 2, of_keys: int = 2, dtype: torch.dtype
) -> Inputs:
    """q, k and v as projections leave them: heads are not contiguous."""
    torch.manual_seed(0)
    shapes = {"q": (queries, of_queries), "k": (keys, of_keys), "v": (keys, of_keys)}
    return {name: torch.randn(1, rows, of, head, dtype=dtype).transpose(1, 2) for name, (rows, of) in shapes.items()}


def kernels_of(*, target: str = "cuda:90", dtype: torch.dtype = torch.bfloat16, **sizes: int) -> set[str]:
    case = SPEC.case("causal-128").with_sizes(**sizes)
    return {launch.kernel.__name__ for launch in planned_launches(SPEC, case, dtype, CONTIGUOUS, target)}


class TestWhoComputes:
    @pytest.mark.parametrize("head", [136, 160, 192])
    def test_these_kernels_compute_heads_of_more_than_128(self, head: int) -> None:
        assert kernels_of(head=head, target="cuda:100") >= WIDE

    @pytest.mark.parametrize("head", [200, 256])
    def test_heads_that_fill_a_block_have_the_portable_forward(self, head: int) -> None:
        assert kernels_of(head=head, target="cuda:100") & WIDE == BACKWARD

    @pytest.mark.parametrize("head", [160, 256])
    def test_hopper_has_a_forward_of_its_own(self, head: int) -> None:
        assert kernels_of(head=head) & WIDE == BACKWARD
        assert "attention_hopper_forward_kernel" in kernels_of(head=head)

    def test_short_sequences_have_one_kernel_for_all_gradients(self) -> None:
        assert kernels_of(head=256, queries=64, keys=64).isdisjoint(WIDE)
        assert kernels_of(head=256, queries=64, keys=65) >= BACKWARD

    @pytest.mark.parametrize(
        "other",
        [{"head": 128}, {"head": 132}, {"head": 160, "dtype": torch.float32}, {"head": 160, "target": "cuda:80"}],
        ids=["narrow", "rows of no whole units", "single precision", "no TMA"],
    )
    def test_others_compute_the_rest(self, other: dict[str, Any]) -> None:
        assert kernels_of(**other).isdisjoint(WIDE)

    @pytest.mark.parametrize("option", ["bias", "mask", "dropout"])
    def test_others_add_to_scores_or_drop_weights(self, option: str) -> None:
        q = torch.empty(1, 2, 100, 160, dtype=torch.bfloat16, device="meta", requires_grad=True)
        options: dict[str, Inputs] = {
            "bias": {"bias": q.new_empty(2, 100, 100)}, "dropout": {"dropout": 0.1},
            "mask": {"mask": torch.ones(1, 100, dtype=torch.bool, device="meta")},
        }  # fmt: skip
        with recorded_plans() as plans:
            torch.autograd.grad(attention(q, q, q, **options[option]), q, torch.empty_like(q))
        assert WIDE.isdisjoint(launch.kernel.__name__ for plan in plans for launch in plan.launches)


@covering(
    head=[136, 160, 184, 192, 256],
    lengths=[(70, 70), (33, 150), (150, 33), (1, 5)],
    of_queries=[1, 3],
    option=list(OPTIONS),
    dtype=[torch.float16, torch.bfloat16],
)
def test_output_and_gradients_match_float64(
    head: int, lengths: tuple[int, int], of_queries: int, option: str, dtype: torch.dtype
) -> None:
    queries, keys = lengths
    given = heads(head, queries=queries, keys=keys, of_queries=of_queries, of_keys=1, dtype=dtype)
    given |= OPTIONS[option]
    with ts.use("interpret"):
        ours = forward_and_backward(attention, given)
    doubled = {name: one.double() if isinstance(one, torch.Tensor) else one for name, one in given.items()}
    rights = forward_and_backward(SPEC.reference, doubled)
    for name, right in rights.items():
        size = max(right.norm(), rights["output 0"].norm() * 1e-2)
        assert (ours[name].double() - right).norm() <= 2 * torch.finfo(dtype).eps * size, name


def wide_launches(head: int, option: str) -> list[PlannedLaunch]:
    q = torch.empty(2, 8, 2048, head, dtype=torch.bfloat16, device="meta", requires_grad=True)
    k = torch.empty(2, 2, 2048, head, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with recorded_plans() as plans:
        torch.autograd.grad(attention(q, k, k, **OPTIONS[option]), (q, k), torch.empty_like(q))
    return [launch for plan in plans for launch in plan.launches if launch.kernel.__name__ in WIDE]


@pytest.mark.parametrize(
    "option", ["causal", *(pytest.param(one, marks=pytest.mark.slow) for one in ("full", "window", "capped"))]
)
@pytest.mark.parametrize("head", [160, *(pytest.param(head, marks=pytest.mark.slow) for head in (192, 256))])
def test_compiles_without_spilling_and_fits(head: int, option: str) -> None:
    launches = wide_launches(head, option)
    has_wide_forward = head < 256 and option in ("window", "capped")  # plain attention has Hopper's own
    assert len(launches) == (4 if has_wide_forward else 3)
    for launch in launches:
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        of_keys = launch.arguments.get("OF_VALUES") is False
        most = 212 if head == 256 and of_keys and triton_version() < (3, 9) else 0  # see `_DK`
        assert binary.spill_bytes <= most, launch.kernel.__name__
        assert binary.shared_bytes <= 227 * 1024, launch.kernel.__name__


@pytest.mark.parametrize(
    ("head", "target"),
    [
        (40, "cuda:80"), (72, "cuda:90"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((40, "cuda:90"), (72, "cuda:80"))),
    ],
)  # fmt: skip
def test_rows_of_whole_units_are_loaded_in_whole_units(head: int, target: str) -> None:
    """16 does not divide the strides, but every row begins at a multiple of 16 bytes. Hopper loads them by TMA."""
    q, k = (torch.empty(1, 2, rows, head, dtype=torch.float16, device="meta") for rows in (1, 999))
    with ts.use("triton"), recorded_plans(target) as plans:
        attention(q, k, k)
    launch = next(one for plan in plans for one in plan.launches if one.kernel.__name__ == "attention_decode_kernel")
    binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
    whole = "cp.async.bulk.tensor" if target == "cuda:90" else "cp.async.cg"  # .cg: 16 bytes at a time
    assert binary.assembly["ptx"].count(whole) > 0
    assert binary.spill_bytes == 0


SIZES = {  # batch, heads, key heads, queries, keys, head size
    "whole-blocks": (2, 4, 4, 512, 512, 256),
    "a-row-more": (1, 3, 3, 513, 513, 160),
    "grouped": (2, 6, 2, 700, 700, 192),
    "more-keys": (1, 2, 1, 130, 1155, 136),
    "some-see-nothing": (1, 2, 2, 1155, 515, 256),
    "few-queries": (7, 8, 2, 17, 70, 256),
    "many-parts": (1, 14, 2, 128, 128, 184),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_results_are_within_twice_the_error_of_pytorch(
    sizes: tuple[int, ...], option: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_on_hopper()
    leaves, doutput = attention_leaves(sizes, dtype)
    launched = names_launched(monkeypatch)

    def results(op: Any, given: list[torch.Tensor], gradient: torch.Tensor) -> list[torch.Tensor]:
        output = op(*given, **OPTIONS[option])
        return [output.detach(), *torch.autograd.grad(output, given, gradient)]

    with ts.use("triton"):
        ours = results(attention, leaves, doutput)
        assert set(launched) >= (WIDE if option in ("window", "capped") and sizes[-1] <= 192 else BACKWARD)
        again = results(attention, leaves, doutput)
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))
    theirs = results(SPEC.reference, leaves, doutput)
    rights = results(SPEC.reference, [leaf.detach().double().requires_grad_() for leaf in leaves], doutput.double())
    for one, their, right in zip(ours, theirs, rights, strict=True):
        assert one.isfinite().all()
        assert (one.double() - right).norm() <= 2 * (their.double() - right).norm()
