"""Attention's backward with specialised warps: when it is chosen, and on a GPU of that kind that it is right at every
edge."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
import torch
from on_hopper import attention_leaves, names_launched, only_on_hopper
from specialisation import planned_launches

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.attention.hopper import backward_plan
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Operand, PlannedLaunch
from tilesmith.spec import CONTIGUOUS
from tilesmith.toolchain.compiler import Target, compile_kernel

KERNEL = "attention_hopper_backward_kernel"
PLAIN_BACKWARD = {"attention_dq_kernel", "attention_dkdv_kernel"}
spec = SPECS["attention"]
attention = spec.op


def kernels_for(
    target: str = "cuda:90", case: str = "causal-128", dtype: torch.dtype = torch.bfloat16, **sizes: int
) -> set[str]:
    launches = planned_launches(spec, spec.case(case).with_sizes(**sizes), dtype, CONTIGUOUS, target)
    return {launch.kernel.__name__ for launch in launches}


def main_launch(head: int, group: int, dtype: torch.dtype = torch.bfloat16) -> PlannedLaunch:
    """Return the launch of the kernel for 8 sequences of 2,048 tokens with 8 key heads."""
    case = spec.case("causal-64").with_sizes(batch=8, key_heads=8, group=group, head=head, queries=2048, keys=2048)
    (launch,) = (one for one in planned_launches(spec, case, dtype) if one.kernel.__name__ == KERNEL)
    return launch


class TestWhoComputes:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("case", ["causal-64", "full-64", "causal-128", "full-128", "long"])
    def test_it_does_for_long_sequences(self, case: str, dtype: torch.dtype) -> None:
        launched = kernels_for(case=case, dtype=dtype)
        assert KERNEL in launched
        assert launched.isdisjoint(PLAIN_BACKWARD)

    @pytest.mark.parametrize("head", [40, 80, 96])
    def test_heads_that_do_not_fill_their_block_too(self, head: int) -> None:
        assert KERNEL in kernels_for(head=head)

    def test_few_programs_will_do_where_heads_share_nothing(self) -> None:
        assert KERNEL in kernels_for(batch=1, key_heads=4, group=1)

    def test_groups_are_split_where_key_heads_are_few(self) -> None:
        assert kernels_for(batch=1, key_heads=4, group=2) >= {KERNEL, "attention_add_parts_kernel"}
        assert "attention_add_parts_kernel" not in kernels_for(batch=16, key_heads=8, group=2)

    @pytest.mark.parametrize(
        ("sizes", "parts"),
        [  # waves of programs, sums of parts, and programs that wait for each other under a causal mask
            ({"batch": 43, "key_heads": 2, "group": 7, "queries": 44, "keys": 44, "head": 80}, 1),
            ({"batch": 1, "key_heads": 4, "group": 8, "queries": 128, "keys": 128, "head": 72}, 8),
            ({"batch": 4, "key_heads": 8, "group": 4, "queries": 4096, "keys": 4096, "head": 128}, 1),
            ({"batch": 3, "key_heads": 8, "group": 8, "queries": 1025, "keys": 1025, "head": 64}, 2),
        ],
    )
    def test_groups_are_split_into_as_many_parts_as_are_fastest(self, sizes: dict[str, int], parts: int) -> None:
        case = spec.case("causal-128").with_sizes(**sizes)
        (launch,) = (one for one in planned_launches(spec, case, torch.bfloat16) if one.kernel.__name__ == KERNEL)
        assert launch.arguments["n_parts"] == parts

    @pytest.mark.parametrize(("group", "ascending"), [(1, False), (4, True)])
    def test_heads_that_share_keys_go_from_the_first_to_the_last(self, group: int, ascending: bool) -> None:
        case = spec.case("causal-128").with_sizes(key_heads=8, group=group)
        (launch,) = (one for one in planned_launches(spec, case, torch.bfloat16) if one.kernel.__name__ == KERNEL)
        assert launch.arguments["ASCENDING"] is ascending

    @pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
    def test_only_hopper_has_the_instructions(self, target: str) -> None:
        launched = kernels_for(target)
        assert KERNEL not in launched
        assert launched >= PLAIN_BACKWARD

    @pytest.mark.parametrize(
        "other",
        [
            {"dtype": torch.float32, "head": 64},
            {"head": 32},
            {"head": 100},
        ],
        ids=[
            "single-precision",
            "narrow-heads",
            "rows-of-no-whole-units",
        ],
    )
    def test_the_plain_form_does_for_the_rest(self, other: dict[str, Any]) -> None:
        launched = kernels_for(**other)
        assert KERNEL not in launched
        assert launched >= PLAIN_BACKWARD

    @pytest.mark.parametrize(
        ("least", "sizes"),
        [
            (backward_plan.LEAST_LENGTH, {"head": 128, "group": 1}),
            (backward_plan.LEAST_LENGTH, {"head": 72, "group": 2}),
            (backward_plan.LEAST_LENGTH, {"head": 64, "group": 2}),
            (backward_plan.LEAST_ALONE, {"head": 64, "group": 1}),
        ],
        ids=["wide-heads", "wide-and-shared", "shared-keys", "narrow-heads"],
    )
    def test_short_sequences_are_left_to_the_plain_form(self, least: int, sizes: dict[str, Any]) -> None:
        assert KERNEL in kernels_for(queries=least, keys=least, **sizes)
        assert KERNEL not in kernels_for(queries=least, keys=least - 1, **sizes)
        assert KERNEL not in kernels_for(queries=least - 1, keys=least, **sizes)

    @pytest.mark.parametrize("option", ["bias", "mask", "softcap", "dropout", "left", "right"])
    def test_what_is_done_to_scores_is_left_to_the_plain_form(self, option: str) -> None:
        q = torch.empty(1, 2, 1024, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        options: dict[str, dict[str, Any]] = {
            "bias": {"bias": q.new_empty(2, 1024, 1024)}, "softcap": {"softcap": 30.0}, "dropout": {"dropout": 0.1},
            "mask": {"mask": torch.ones(1, 1024, dtype=torch.bool, device="meta")},
            "left": {"window": (64, 0)}, "right": {"window": (-1, 7)},
        }  # fmt: skip
        with recorded_plans() as plans:
            attention(q, q, q, **options[option]).backward(torch.empty_like(q))
        launched = {launch.kernel.__name__ for plan in plans for launch in plan.launches}
        assert (KERNEL in launched) is (option == "right")

    def test_a_gradient_that_no_copy_engine_walks_is_left_to_the_plain_form(self) -> None:
        q = torch.empty(1, 2, 1024, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        with recorded_plans() as plans:
            attention(q, q, q).backward(q.new_empty(1, 1, 1, 1).expand_as(q))
        launched = {launch.kernel.__name__ for plan in plans for launch in plan.launches}
        assert launched >= PLAIN_BACKWARD

    def test_the_interpreter_is_given_the_plain_form(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backward_plan, "LEAST_ALONE", 64)
        leaves = [torch.randn(1, 1, 96, 64, dtype=torch.float16, requires_grad=True) for _ in range(3)]
        doutput = torch.randn(1, 1, 96, 64, dtype=torch.float16)
        with ts.use("interpret"):
            ours = torch.autograd.grad(attention(*leaves, causal=True), leaves, doutput)
        rights = torch.autograd.grad(spec.reference(*leaves, causal=True), leaves, doutput)
        for one, right in zip(ours, rights, strict=True):
            torch.testing.assert_close(one.float(), right.float(), atol=1e-2, rtol=1e-2)

    def test_every_counter_is_zeroed_before_it_counts(self) -> None:
        """By the kernel before, of which each program zeroes as many as it has queries."""
        launches = planned_launches(spec, spec.case("causal-64").with_sizes(queries=1025, keys=1025), torch.bfloat16)
        delta, main = [one for one in launches if one.kernel.__name__ in ("attention_delta_kernel", KERNEL)]
        counters = cast(Operand, delta.arguments["counters_ptr"])
        assert counters is main.arguments["counters_ptr"]
        assert counters.shape == (8 * 32, 9)
        assert delta.arguments["n_counters"] == 8 * 32 * 9
        zeroed = delta.grid[0] * cast(int, delta.arguments["BLOCK_QUERIES"])
        assert zeroed >= 8 * 32 * 9


@pytest.mark.parametrize(
    ("head", "tiles", "queries"),
    [(40, (64, 0), 128), (64, (64, 0), 128), (72, (64, 16), 64), (80, (64, 16), 64), (96, (64, 32), 64),
     (104, (128, 0), 64), (128, (128, 0), 64)],
)  # fmt: skip
def test_a_head_is_one_tile_or_two(head: int, tiles: tuple[int, int], queries: int) -> None:
    """Each warpgroup has 64 rows of dq: of a head in two tiles, one tile."""
    launch = main_launch(head, group=1)
    assert (launch.arguments["FIRST"], launch.arguments["REST"]) == tiles
    assert launch.arguments["QUERIES"] == queries
    sums = cast(Operand, launch.arguments["sums_ptr"])
    assert sums.shape == (8 * 8 * 16 * 128 * sum(tiles) // 32, 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    ("head", "group"),
    [(80, 4), (96, 1), *(pytest.param(*slow, marks=pytest.mark.slow) for slow in ((64, 1), (64, 4), (80, 1), (96, 4),
     (128, 1), (128, 4)))],
)  # fmt: skip
def test_products_overlap_without_spilling(head: int, group: int, dtype: torch.dtype) -> None:
    """If ptxas makes each product wait for the one before, many more instructions wait."""
    launch = main_launch(head, group, dtype)
    binary = compile_kernel(
        launch.kernel, Target.parse("cuda:90"), launch.arguments | launch.config.constants(), **launch.options()
    )
    assert binary.spill_bytes == 0
    assert binary.shared_bytes <= 227 * 1024
    sass = binary.assembly["sass"]
    assert sass.count("HGMMA") > 40
    assert 0 < len(re.findall(r"WARPGROUP\.DEPBAR", sass)) <= 10


SIZES = {  # batch, heads, key heads, queries, keys, head size
    "whole-blocks": (1, 2, 2, 1024, 1024, 64),
    "a-row-more": (2, 2, 2, 1025, 1025, 128),
    "a-row-less": (1, 2, 2, 639, 639, 64),
    "grouped": (2, 6, 2, 900, 900, 128),
    "more-keys": (1, 2, 1, 515, 1155, 64),
    "some-see-nothing": (1, 2, 2, 1155, 515, 128),
    "narrower-heads": (1, 3, 3, 700, 700, 96),
    "heads-of-40": (1, 3, 1, 700, 700, 40),
    "more-heads-than-a-set": (3, 30, 30, 520, 520, 64),
    "short": (2, 4, 4, 159, 159, 80),
    "two-tiles": (2, 6, 2, 900, 1155, 80),
    "two-tiles-some-see-nothing": (1, 4, 4, 1155, 515, 96),
    "two-tiles-many": (3, 30, 30, 520, 520, 96),
    "short-grouped": (3, 4, 2, 197, 140, 64),
    "shortest": (2, 4, 4, 33, 40, 128),
    "shortest-grouped": (3, 14, 2, 44, 44, 80),
    "shortest-narrow": (2, 8, 2, 50, 33, 56),
    "two-tiles-odd-rows": (2, 4, 2, 300, 170, 72),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("ascending", [False, True], ids=["from-the-last-keys", "from-the-first-keys"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_gradients_are_within_twice_the_error_of_pytorch(
    sizes: tuple[int, ...], ascending: bool, causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_on_hopper()
    leaves, doutput = attention_leaves(sizes, dtype)
    launched = names_launched(monkeypatch)
    with ts.use("triton"), ts.ops.configured(ASCENDING=ascending):
        output = attention(*leaves, causal=causal)
        ours = torch.autograd.grad(output, leaves, doutput, retain_graph=True)
        assert KERNEL in launched
        for _ in range(5):
            again = torch.autograd.grad(output, leaves, doutput, retain_graph=True)
            assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))
    theirs = torch.autograd.grad(spec.reference(*leaves, causal=causal), leaves, doutput)
    doubled = [leaf.detach().double().requires_grad_() for leaf in leaves]
    rights = torch.autograd.grad(spec.reference(*doubled, causal=causal), doubled, doutput.double())
    for one, their, right in zip(ours, theirs, rights, strict=True):
        assert one.isfinite().all()
        assert (one.double() - right).norm() <= 2 * (their.double() - right).norm()


@pytest.mark.gpu
def test_keys_to_the_right_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    only_on_hopper()
    leaves, doutput = attention_leaves((1, 2, 2, 577, 641, 64), torch.float16)
    launched = names_launched(monkeypatch)
    with ts.use("triton"):
        ours = torch.autograd.grad(attention(*leaves, window=(-1, 100)), leaves, doutput)
    assert KERNEL in launched
    rights = torch.autograd.grad(spec.reference(*leaves, window=(-1, 100)), leaves, doutput)
    for one, right in zip(ours, rights, strict=True):
        assert (one - right).norm() <= 3e-3 * right.norm()


@pytest.mark.gpu
def test_gradients_in_a_captured_graph_are_the_same_at_every_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replay zeros the counters."""
    only_on_hopper()
    launched = names_launched(monkeypatch)
    leaves, doutput = attention_leaves((8, 8, 4, 1200, 1200, 128), torch.bfloat16)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # PyTorch does not type it
    torch.cuda.synchronize()
    with ts.use("triton"), torch.cuda.stream(stream):
        output = attention(*leaves, causal=True)
        right = torch.autograd.grad(output, leaves, doutput, retain_graph=True)
        assert KERNEL in launched
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = torch.autograd.grad(output, leaves, doutput, retain_graph=True)
        for _ in range(3):
            for gradient in captured:
                gradient.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(one, other) for one, other in zip(captured, right, strict=True))


@pytest.mark.parametrize(
    ("sizes", "whole"),
    [({}, True), ({"keys": 65}, True), ({"keys": 129}, False)],
    ids=["128-keys", "65-keys", "129-keys"],
)
def test_the_gradient_of_a_short_sequence_is_one_kernel(sizes: dict[str, int], whole: bool) -> None:
    case = spec.case("small").with_sizes(**sizes)
    launched = {one.kernel.__name__: one for one in planned_launches(spec, case, torch.bfloat16)}
    assert ("attention_dq_kernel" not in launched) is whole
    assert launched["attention_dkdv_kernel"].arguments["WITH_DQ"] is whole
    assert not whole or launched["attention_dkdv_kernel"].arguments["BLOCK_KEYS"] == 128
