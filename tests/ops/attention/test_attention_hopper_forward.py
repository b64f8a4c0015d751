"""Attention's forward with specialised warps: when it is chosen, what the compiler makes of it, and on a GPU of that
kind that it is right at every edge."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, cast

import pytest
import torch
from on_hopper import attention_leaves, names_launched, only_on_hopper
from specialisation import planned_launches

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.attention import forms
from tilesmith.ops.attention.hopper import forward_plan, forward_tiles
from tilesmith.ops.attention.hopper.forward_plan import LEAST_LENGTH, HopperForward
from tilesmith.ops.attention.hopper.forward_tiles import LONGEST
from tilesmith.ops.attention.hopper.head_tiles import parts_of_head
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.spec import CONTIGUOUS
from tilesmith.toolchain.compiler import Target, compile_kernel
from tilesmith.toolchain.versions import RegisterUse

KERNEL = "attention_hopper_forward_kernel"
spec = SPECS["attention"]
attention = spec.op


def launches_for(
    target: str = "cuda:90", case: str = "causal-64", dtype: torch.dtype = torch.bfloat16, **sizes: int
) -> dict[str, PlannedLaunch]:
    launches = planned_launches(spec, spec.case(case).with_sizes(**sizes), dtype, CONTIGUOUS, target)
    return {launch.kernel.__name__: launch for launch in launches}


class TestWhoComputes:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("case", ["causal-64", "full-64", "causal-128", "full-128"])
    def test_it_does_for_long_sequences(self, case: str, dtype: torch.dtype) -> None:
        assert KERNEL in launches_for(case=case, dtype=dtype)

    @pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
    def test_only_hopper_has_the_instructions(self, target: str) -> None:
        assert KERNEL not in launches_for(target)

    @pytest.mark.parametrize(
        "other",
        [
            {"dtype": torch.float32},
            {"head": 264},
            {"head": 16},
            {"head": 60},
            {"queries": LEAST_LENGTH - 1},
            {"keys": LEAST_LENGTH - 1},
            {"queries": 64, "keys": 64},
        ],
        ids=["single-precision", "wider-heads", "narrowest-heads", "rows-of-no-whole-units", "few-queries", "few-keys",
             "one-program-holds-all-scores"],
    )  # fmt: skip
    def test_others_do_for_the_rest(self, other: dict[str, Any]) -> None:
        assert KERNEL not in launches_for(**other)

    @pytest.mark.parametrize("head", [24, 32, 40, 80, 96, 136, 160, 192, 224, 256])
    def test_heads_of_all_sizes_are_taken(self, head: int) -> None:
        assert KERNEL in launches_for(head=head)

    @pytest.mark.parametrize("case", ["causal-64", "causal-128"])
    def test_few_programs_and_short_sequences_are_taken(self, case: str) -> None:
        assert KERNEL in launches_for(case=case, batch=1, key_heads=2, group=1)
        assert KERNEL in launches_for(case=case, queries=70, keys=100)

    @pytest.mark.parametrize("option", ["bias", "mask", "softcap", "dropout", "window", None])
    def test_what_is_done_to_scores_is_left_to_the_plain_form(self, option: str | None) -> None:
        q = torch.empty(8, 8, 128, 64, dtype=torch.bfloat16, device="meta")
        options: dict[str, Any] = {
            "bias": q.new_empty(8, 128, 128), "softcap": 30.0, "dropout": 0.1, "window": (64, 0),
            "mask": torch.ones(8, 128, dtype=torch.bool, device="meta"),
        }  # fmt: skip
        with recorded_plans() as plans:
            attention(q, q, q, **({option: options[option]} if option else {}))
        launched = {launch.kernel.__name__ for plan in plans for launch in plan.launches}
        assert launched
        assert (KERNEL in launched) is (option is None)

    def test_the_interpreter_is_given_the_plain_form(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forward_plan, "LEAST_LENGTH", 64)
        q, k, v = (torch.randn(2, 2, 64, 64, dtype=torch.float16) for _ in range(3))
        with ts.use("interpret"):
            ours = attention(q, k, v, causal=True)
        torch.testing.assert_close(ours.float(), spec.reference(q, k, v, causal=True).float(), atol=2e-3, rtol=0)


class TestHowItIsLaunched:
    @pytest.mark.parametrize("case", ["causal-64", "causal-128"])
    def test_programs_that_stay_have_as_much_to_do_as_each_other(self, case: str) -> None:
        launch = launches_for(case=case)[KERNEL]
        constants, sizes = launch.config.constants(), spec.case(case).sizes
        rows, length, heads = 64 * constants["GROUPS"], sizes["queries"], sizes["batch"] * sizes["key_heads"]
        n_blocks, together = -(-length // rows), cast(int, launch.arguments["together"])
        blocks = [0] * launch.grid[0]
        for tile in range(heads * n_blocks):
            first_head, within = tile // (together * n_blocks) * together, tile % (together * n_blocks)
            start = (n_blocks - 1 - within // min(together, heads - first_head)) * rows
            blocks[tile % launch.grid[0]] += -(-min(start + rows, length) // constants["BLOCK_KEYS"])
        assert max(blocks) <= 1.1 * sum(blocks) / len(blocks)

    def test_heads_that_are_walked_along_together_fit_in_the_cache(self) -> None:
        launch = launches_for(case="causal-128", batch=1, key_heads=64, queries=16384, keys=16384)[KERNEL]
        assert cast(int, launch.arguments["together"]) * 2 * 16384 * 128 * 2 <= 25 << 20

    def test_blocks_of_one_length_are_taken_head_by_head(self) -> None:
        assert launches_for(case="full-64")[KERNEL].arguments["together"] == 1

    def test_long_blocks_come_first_where_programs_take_one_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forward_tiles, "register_use", lambda: RegisterUse.LEAST)
        assert launches_for(case="causal-64", queries=LONGEST, keys=LONGEST)[KERNEL].arguments["together"] == 8 * 32

    @pytest.mark.parametrize(
        ("case", "length", "forms"),
        [  # GROUPS, BLOCK_KEYS and whether programs stay, with Triton 3.6, 3.7, 3.8 and 3.9
            ("causal-64", 256, [(1, 64, True)] * 4),
            ("full-128", 256, [(1, 64, True)] * 4),
            ("causal-64", 1024, [(1, 64, True)] * 4),
            ("full-64", 1024, [(4, 64, True), (1, 128, True), (1, 128, True), (1, 128, True)]),
            ("full-128", 384, [(2, 128, True)] * 4),
            ("full-128", 320, [(1, 64, True)] * 4),
            ("causal-64", 2048, [(3, 128, True), (3, 128, True), (3, 128, True), (1, 128, True)]),
            ("full-64", 2048, [(3, 128, True), (3, 128, True), (3, 128, True), (1, 128, True)]),
            ("causal-64", LONGEST, [(3, 128, False), (3, 128, False), (3, 128, True), (1, 128, True)]),
            ("full-64", LONGEST, [(3, 128, False), (3, 128, False), (3, 128, True), (1, 128, True)]),
            ("causal-128", LONGEST, [(2, 128, True)] * 4),
            ("full-128", 512, [(2, 128, True)] * 4),
        ],
    )  # fmt: skip
    def test_the_form_is_the_fastest_that_does_not_spill(
        self, case: str, length: int, forms: list[tuple[int, int, bool]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = []
        for use in RegisterUse:
            monkeypatch.setattr(forward_tiles, "register_use", lambda use=use: use)
            constants = launches_for(case=case, queries=length, keys=length)[KERNEL].config.constants()
            chosen.append((constants["GROUPS"], constants["BLOCK_KEYS"], constants["PERSISTENT"]))
        assert chosen == forms

    @pytest.mark.parametrize(
        ("head", "length", "tiles"),
        [  # GROUPS, BLOCK_KEYS, STAGES and `resident`, with Triton 3.6, 3.7, 3.8 and 3.9
            (32, 256, [(1, 64, 3, 4)] * 4),
            (32, 2048, [(4, 64, 4, 1)] * 4),
            (40, 256, [(2, 64, 4, 1)] * 4),
            (40, 768, [(3, 64, 4, 1)] * 4),
            (72, 64, [(1, 64, 2, 3)] * 4),
            (72, 128, [(2, 64, 3, 1)] * 4),
            (72, 2048, [(3, 64, 3, 1)] * 4),
            (104, 256, [(2, 64, 3, 1)] * 4),
            (104, 2048, [(2, 128, 2, 1)] * 4),
            (80, 256, [(1, 64, 2, 3)] * 4),
            (80, 2048, [(1, 128, 2, 2)] * 4),
            (96, 256, [(1, 64, 2, 3)] * 3 + [(1, 64, 2, 2)]),
            (96, 2048, [(2, 128, 2, 1)] * 4),
            (160, 256, [(2, 64, 2, 1)] * 4),
            (160, 2048, [(2, 128, 2, 1)] * 3 + [(2, 64, 3, 1)]),
            (192, 1024, [(2, 64, 2, 1)] * 4),
            (192, 2048, [(2, 64, 3, 1)] * 4),
            (256, 2048, [(2, 64, 2, 1)] * 3 + [(2, 32, 4, 1)]),
        ],
    )  # fmt: skip
    def test_other_heads_have_the_fastest_tiles_that_do_not_spill(
        self, head: int, length: int, tiles: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = []
        for use in RegisterUse:
            monkeypatch.setattr(forward_tiles, "register_use", lambda use=use: use)
            config = asdict(launches_for(head=head, queries=length, keys=length)[KERNEL].config)
            chosen.append(tuple(config[name] for name in ("GROUPS", "BLOCK_KEYS", "STAGES", "resident")))
        assert chosen == tiles

    @pytest.mark.parametrize(
        ("head", "parts"),
        [(24, (32, 0)), (40, (64, 0)), (64, (64, 0)), (72, (64, 16)), (80, (64, 16)), (96, (64, 32)), (104, (128, 0)),
         (136, (128, 16)), (160, (128, 32)), (192, (128, 64)), (200, (256, 0))],
    )  # fmt: skip
    def test_a_head_is_computed_in_few_columns_more_than_it_has(self, head: int, parts: tuple[int, int]) -> None:
        assert parts_of_head(head) == parts
        constants = launches_for(head=head)[KERNEL].arguments
        assert (constants["FIRST"], constants["REST"]) == parts

    def test_two_tiles_share_a_multiprocessor_where_larger_ones_need_one_more_wave(self) -> None:
        launches = launches_for(case="full-64", queries=2048, keys=2048, batch=1, key_heads=16, group=1)
        constants = launches[KERNEL].config.constants()
        assert constants["GROUPS"] == 1  # 176 tiles of 192 queries would be two waves of 132

    @pytest.mark.parametrize(("case", "resident", "registers", "at_launch"), [
        ("causal-64", 3, 136, 80), ("causal-128", 2, 232, 128),
    ])  # fmt: skip
    def test_short_sequences_run_several_programs_on_a_multiprocessor(
        self, case: str, resident: int, registers: int, at_launch: int
    ) -> None:
        launch = launches_for(case=case, queries=256, keys=256)[KERNEL]
        assert launch.grid[0] == 132 * resident
        assert launch.arguments["REGISTERS"] == registers
        assert launch.options()["maxnreg"] == at_launch

    @pytest.mark.parametrize("stays", [True, False])
    def test_programs_stay_for_all_blocks_of_queries_or_take_one_each(self, stays: bool) -> None:
        with ts.ops.configured(GROUPS=3, PERSISTENT=stays, resident=1):
            launch = launches_for()[KERNEL]
        n_tiles = 8 * 32 * -(-2048 // (64 * 3))
        assert launch.arguments["n_tiles"] == n_tiles
        assert launch.grid[0] == (132 if stays else n_tiles)

    @pytest.mark.parametrize(("groups", "registers"), [(2, 240), (3, 160), (4, 112)])
    def test_registers_are_shared_out_among_warpgroups(self, groups: int, registers: int) -> None:
        with ts.ops.configured(GROUPS=groups, resident=1):
            launch = launches_for()[KERNEL]
        assert launch.arguments["REGISTERS"] == registers
        assert launch.config.all_warps == 4 * (groups + 1)


@pytest.mark.parametrize(
    ("head", "length"),
    [
        (64, 2048), (128, 256), (96, 2048), (160, 256),
        *(pytest.param(*slow, marks=pytest.mark.slow) for slow in (
            (128, 4096), (64, 256), (64, 1024), (64, LONGEST), (32, 256), (32, 2048), (40, 256), (72, 128), (72, 2048),
            (80, 256), (80, 2048), (96, 256), (104, 256), (160, 2048), (192, 1024), (192, 2048), (256, 2048),
        )),
    ],
)  # fmt: skip
def test_products_and_exponentials_overlap_without_spilling(head: int, length: int) -> None:
    """In every form that is chosen with this Triton. ptxas makes one product wait for the other where anything else
    touches their registers in between: then every one of them is followed by a wait of its own."""
    launch = launches_for(head=head, queries=length, keys=length)[KERNEL]
    constants, resident = launch.config.constants(), asdict(launch.config)["resident"]
    binary = compile_kernel(
        launch.kernel, Target.parse("cuda:90"), launch.arguments | constants, **launch.options()
    )  # fmt: skip
    assert binary.spill_bytes == 0
    assert resident * (binary.shared_bytes + 1024) <= 228 * 1024
    instructions = re.findall(r"HGMMA|WARPGROUP\.DEPBAR\.LE gsb0, 0x\d|MUFU\.EX2", binary.assembly["sass"])
    waits = sum("DEPBAR" in one for one in instructions)
    assert 0 < waits <= 6 * constants["GROUPS"]  # the first scores, two in each of two loops, the last sum
    # Until no more than the sum is under way, in both of its tiles, then a thread's exponentials, half as many as keys,
    # then for the sum: with keys that are checked, and with others.
    exponentials = rf"(?:MUFU\.EX2 ){{{constants['BLOCK_KEYS'] // 2},}}"
    under_way = 2 if launch.arguments["REST"] else 1
    overlap = rf"DEPBAR\.LE gsb0, 0x{under_way} {exponentials}WARPGROUP\.DEPBAR\.LE gsb0, 0x0"
    assert len(re.findall(overlap, " ".join(instructions))) == 2 * constants["GROUPS"]


SIZES = {  # batch, heads, key heads, queries, keys, head size
    "whole-blocks": (2, 16, 16, 1536, 1536, 64),
    "a-row-more": (2, 16, 16, 1153, 1153, 64),
    "a-row-less": (2, 16, 16, 1151, 1151, 64),
    "grouped": (2, 24, 8, 1500, 1500, 64),
    "more-keys": (2, 16, 8, 1027, 1539, 64),
    "some-see-nothing": (2, 16, 16, 1539, 1027, 64),
    "narrower-heads": (2, 24, 24, 1100, 1100, 40),
    "longer": (1, 16, 8, 2050, 2050, 64),
    "longest": (1, 8, 4, LONGEST + 4, LONGEST + 4, 64),
    "wide-heads": (1, 2, 2, 1024, 1024, 128),
    "wide-a-row-more": (2, 2, 2, 1025, 1025, 128),
    "wide-a-row-less": (1, 2, 2, 1151, 1151, 128),
    "wide-grouped": (2, 6, 2, 1500, 1500, 128),
    "wide-more-keys": (1, 2, 1, 1027, 1539, 128),
    "wide-some-see-nothing": (1, 2, 2, 1539, 1027, 128),
    "less-wide": (1, 3, 3, 1100, 1100, 80),
    "wide-many-tiles": (4, 20, 20, 1100, 1100, 128),
    "short": (9, 12, 12, 197, 197, 64),
    "short-many-tiles": (16, 40, 8, 256, 256, 64),
    "short-grouped": (2, 6, 2, 100, 100, 40),
    "short-few-keys": (1, 4, 4, 1100, 77, 64),
    "short-some-see-nothing": (2, 4, 4, 200, 90, 64),
    "short-few-tiles": (1, 4, 4, 2050, 2050, 64),
    "short-wide": (3, 6, 6, 257, 257, 128),
    "short-wide-many-tiles": (8, 32, 8, 300, 300, 80),
    "short-wide-more-keys": (2, 4, 1, 130, 450, 112),
    "shortest-wide": (2, 4, 4, LEAST_LENGTH, 20, 128),
    "narrow": (2, 8, 2, 1100, 1100, 32),
    "short-narrow": (2, 8, 8, 70, 257, 24),
    "two-tiles": (2, 6, 2, 1100, 1301, 80),
    "two-tiles-many": (4, 20, 20, 1100, 1100, 96),
    "two-tiles-short": (3, 16, 4, 300, 300, 96),
    "two-tiles-shorter": (3, 16, 4, 90, 77, 80),
    "two-tiles-wide": (2, 8, 4, 1100, 1100, 160),
    "two-tiles-wide-more-keys": (1, 4, 2, 513, 1155, 136),
    "two-tiles-wide-short": (3, 8, 8, 257, 130, 144),
    "two-tiles-wider": (1, 4, 2, 2050, 2050, 192),
    "two-tiles-wider-short": (2, 8, 2, 300, 300, 176),
    "odd-rows": (3, 16, 4, 300, 330, 72),
    "odd-rows-long": (2, 12, 4, 1100, 1100, 88),
    "odd-rows-narrow": (3, 8, 8, 250, 250, 40),
    "odd-rows-narrow-long": (2, 12, 4, 700, 768, 56),
    "odd-rows-wide": (2, 8, 2, 300, 257, 104),
    "widest": (2, 6, 2, 1100, 1300, 256),
    "widest-short": (2, 4, 4, 20, 40, 224),
}


TRIED = [(name, torch.bfloat16) for name in SIZES] + [
    (name, torch.float16) for name in SIZES if not name.startswith("short-")
]


@pytest.mark.gpu
@pytest.mark.parametrize(("sizes", "dtype"), [(SIZES[name], dtype) for name, dtype in TRIED], ids=map(str, TRIED))
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_is_as_exact_as_the_plain_form_with_gradients(
    sizes: tuple[int, ...], causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_on_hopper()
    leaves, doutput = attention_leaves(sizes, dtype)
    doubled = [one.detach().double().requires_grad_() for one in leaves]
    right = spec.reference(*doubled, causal=causal)
    right_gradients = torch.autograd.grad(right, doubled, doutput.double())
    launched = names_launched(monkeypatch)

    def errors() -> list[float]:
        launched.clear()
        with ts.use("triton"):
            made = attention(*leaves, causal=causal)
            assert torch.equal(made, attention(*leaves, causal=causal))
        gradients = torch.autograd.grad(made, leaves, doutput)
        pairs = zip((made, *gradients), (right, *right_gradients), strict=True)
        assert made.isfinite().all()
        return [float((ours.double() - correct).norm() / correct.norm()) for ours, correct in pairs]

    specialised = errors()
    assert KERNEL in launched
    monkeypatch.setattr(forms, "FORWARD", [form for form in forms.FORWARD if not isinstance(form, HopperForward)])
    dispatch.forget()
    plain = errors()
    assert KERNEL not in launched
    dispatch.forget()
    assert all(one <= 1.1 * other for one, other in zip(specialised, plain, strict=True)), (specialised, plain)
