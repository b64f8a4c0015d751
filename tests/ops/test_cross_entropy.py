"""Cross entropy beyond its formula: options, targets that are no class, extreme logits, any layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differentiation import assert_same
from losses import results_of
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.lab.check import Trial, run
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.spec import CONTIGUOUS, Case, Inputs
from tilesmith.toolchain.compiler import Target, compile_kernel

SPEC = SPECS["cross_entropy"]
cross_entropy = SPEC.op
BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def compare(**inputs: Any) -> dict[str, Tensor]:
    """Assert that results and gradients match the reference, and return them."""
    found = results_of(cross_entropy, inputs)
    torch.testing.assert_close(found, results_of(SPEC.reference, inputs), equal_nan=True)
    return found


def compare_with_exact(logits: Tensor, **options: Any) -> None:
    """Assert that results and gradients match the reference in float64."""
    found = results_of(cross_entropy, {"logits": logits, **options})
    exact = results_of(SPEC.reference, {"logits": logits.double(), **options})
    for name, value in found.items():
        torch.testing.assert_close(value.double(), exact[name], rtol=1e-5, atol=1e-7, equal_nan=True)


@covering(
    times=3,
    reduction=["mean", "sum", "none"],
    label_smoothing=[0.0, 0.1, 1.0],
    dtype=[torch.float32, torch.bfloat16, torch.float16],
)
def test_error_is_within_the_rule_for_all_options(reduction: str, label_smoothing: float, dtype: torch.dtype) -> None:
    def make_inputs(case: Case, dtype: torch.dtype, device: str) -> Inputs:
        inputs = SPEC.inputs(case, dtype, device)
        inputs["target"] = inputs["target"].where(inputs["target"] >= 0, 3)
        return {**inputs, "ignore_index": 3, "label_smoothing": label_smoothing, "reduction": reduction}

    spec = replace(SPEC, make_inputs=make_inputs)
    results = list(run(Trial(spec, SPEC.case("tiny"), dtype, CONTIGUOUS, "cpu")))
    assert len(results) == 2
    assert not [result for result in results if not result.passed]


@REDUCTIONS
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
@BOTH_WAYS
def test_matches_torch_cross_entropy(mode: Any, reduction: str, label_smoothing: float) -> None:
    logits, target = torch.randn(9, 40), torch.tensor([0, 39, -100, 5, 5, -100, 1, 2, 3])
    options: dict[str, Any] = {"label_smoothing": label_smoothing, "reduction": reduction}
    with ts.use(mode):
        ours = results_of(cross_entropy, {"logits": logits, "target": target, **options})
    torchs = results_of(F.cross_entropy, {"input": logits, "target": target, **options})
    torch.testing.assert_close(list(ours.values()), list(torchs.values()))


@BOTH_WAYS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_loss_of_half_precision_logits_is_float32(mode: Any, dtype: torch.dtype) -> None:
    logits, target = torch.randn(4, 300).to(dtype), torch.randint(300, (4,))
    with ts.use(mode):
        found = results_of(cross_entropy, {"logits": logits, "target": target})
    torch.testing.assert_close(found["loss"], F.cross_entropy(logits.float(), target))
    assert found["gradient of logits"].dtype == dtype


class TestBadInput:
    @BOTH_WAYS
    @pytest.mark.parametrize(
        ("arguments", "kind", "words"),
        [
            ({"target": [1, 2, 3]}, TypeError, "target is a list, but must be a tensor"),
            ({"target": torch.zeros(3)}, TypeError, "target has dtype float32, but must hold classes as int64"),
            ({"target": torch.zeros(3).int()}, TypeError, "target has dtype int32, but must hold classes as int64"),
            (
                {"target": torch.zeros(4).long()},
                ValueError,
                r"target has shape \(4,\), but logits has \(3,\) before its last dimension",
            ),
            ({"target": torch.zeros(3, 8).long()}, ValueError, r"target has shape \(3, 8\), but logits has \(3,\)"),
            ({"logits": torch.tensor(1.0)}, ValueError, "logits has 0 dimensions"),
            ({"target": torch.zeros(3, device="meta").long()}, ValueError, "target is on meta, but logits is on cpu"),
            ({"ignore_index": 1.5}, TypeError, "ignore_index is a float, but must be an integer"),
            ({"ignore_index": None}, TypeError, "ignore_index is a NoneType, but must be an integer"),
            ({"ignore_index": True}, TypeError, "ignore_index is a bool, but must be an integer"),
            ({"label_smoothing": -0.1}, ValueError, "label_smoothing is -0.1, but must be at least 0"),
            ({"label_smoothing": 1.5}, ValueError, "label_smoothing is 1.5, but must be at most 1"),
            ({"label_smoothing": NAN}, ValueError, "label_smoothing is nan, but must be at least 0"),
            ({"label_smoothing": "much"}, TypeError, "label_smoothing is a str, but must be a number"),
            ({"reduction": "average"}, ValueError, "reduction is 'average', but must be one of mean, sum, none"),
            ({"reduction": None}, ValueError, "reduction is None, but must be one of mean, sum, none"),
        ],
    )
    def test_bad_input_raises_error_that_names_it(
        self, mode: Any, arguments: Inputs, kind: type[Exception], words: str
    ) -> None:
        with ts.use(mode), pytest.raises(kind, match=f"^cross_entropy: {words}"):
            cross_entropy(**{"logits": torch.ones(3, 8), "target": torch.zeros(3).long(), **arguments})


class TestTargetsThatAreNoClass:
    WRONG = pytest.mark.parametrize("wrong", [-1, 40, 2**31, -(2**63), 2**63 - 1])

    @WRONG
    def test_bad_target_makes_only_its_row_nan(self, wrong: int) -> None:
        logits, target = torch.randn(5, 40), torch.randint(40, (5,))
        right = compare(logits=logits, target=target, reduction="none")
        target[2] = wrong
        found = results_of(cross_entropy, {"logits": logits, "target": target, "reduction": "none"})
        for name, value in found.items():
            assert value[2].isnan().all(), name
            kept = torch.arange(5) != 2
            torch.testing.assert_close(value[kept], right[name][kept], rtol=0, atol=0)

    @WRONG
    def test_bad_target_makes_the_mean_nan(self, wrong: int) -> None:
        assert cross_entropy(torch.randn(5, 40), torch.tensor([1, 2, wrong, 3, 4])).isnan()

    @WRONG
    @BOTH_WAYS
    def test_debug_rejects_bad_targets(self, mode: Any, wrong: int) -> None:
        words = rf"^cross_entropy: target is {wrong} at \[0, 1\], but must be a class from 0 to 39, or ignore_index"
        with ts.use(mode), ts.debug(), pytest.raises(ValueError, match=words):
            cross_entropy(torch.randn(1, 2, 40), torch.tensor([[1, wrong]]))

    @BOTH_WAYS
    def test_debug_accepts_classes_and_ignored_targets(self, mode: Any) -> None:
        with ts.use(mode), ts.debug():
            cross_entropy(torch.randn(3, 40), torch.tensor([0, 39, -100]))
            cross_entropy(torch.randn(3, 40), torch.tensor([0, 39, 1000]), ignore_index=1000)


class TestIgnoredRows:
    def test_all_rows_ignored_give_nan_mean_and_zero_gradient(self) -> None:
        logits, target = torch.randn(4, 10), torch.full((4,), -100)
        for reduction, loss in (("mean", torch.tensor(NAN)), ("sum", torch.tensor(0.0)), ("none", torch.zeros(4))):
            found = results_of(cross_entropy, {"logits": logits, "target": target, "reduction": reduction})
            torch.testing.assert_close(found["loss"], loss, equal_nan=True)
            torch.testing.assert_close(found["gradient of logits"], torch.zeros(4, 10), rtol=0, atol=0)

    def test_logits_of_ignored_rows_have_no_influence(self) -> None:
        logits, target = torch.randn(4, 10), torch.tensor([1, -100, 2, -100])
        right = compare(logits=logits, target=target)
        logits[1], logits[3] = NAN, INFINITY
        assert_same(results_of(cross_entropy, {"logits": logits, "target": target}), right)

    def test_a_class_can_be_ignored(self) -> None:
        compare(logits=torch.randn(4, 10), target=torch.tensor([1, 0, 2, 0]), ignore_index=0)

    @pytest.mark.parametrize("ignore_index", [2**40, -(2**40)])
    def test_ignore_index_can_exceed_32_bits(self, ignore_index: int) -> None:
        compare(logits=torch.randn(3, 10), target=torch.tensor([1, ignore_index, 2]), ignore_index=ignore_index)


class TestExtremeLogits:
    """Rows shorter and longer than a block."""

    COLUMNS = pytest.mark.parametrize("columns", [20, 5000])

    @COLUMNS
    @pytest.mark.parametrize("offset", [1e4, -1e4])
    @pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
    def test_common_offset_costs_no_digits(self, columns: int, offset: float, label_smoothing: float) -> None:
        logits, target = (torch.randn(3, columns) + offset), torch.randint(columns, (3,))
        compare_with_exact(logits=logits, target=target, label_smoothing=label_smoothing, reduction="none")

    @COLUMNS
    def test_logits_whose_difference_overflows_match_reference(self, columns: int) -> None:
        logits = torch.randn(2, columns)
        logits[0, 3], logits[0, 7] = 3e38, -3e38
        compare(logits=logits, target=torch.tensor([3, 1]))
        compare(logits=logits, target=torch.tensor([7, 1]))

    @COLUMNS
    @pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
    def test_logits_of_minus_infinity_match_float64(self, columns: int, label_smoothing: float) -> None:
        """All of the first blocks, all classes but one, and the target itself."""
        for ruled_out in (slice(0, columns - 3), slice(1, None), slice(0, 1)):
            logits = torch.randn(3, columns)
            logits[:, ruled_out] = -INFINITY
            target = torch.tensor([columns - 1, 0, 1])
            compare_with_exact(logits=logits, target=target, label_smoothing=label_smoothing, reduction="none")

    @COLUMNS
    @pytest.mark.parametrize("special", [INFINITY, -INFINITY, NAN])
    def test_rows_of_infinities_or_nan_match_reference(self, columns: int, special: float) -> None:
        logits = torch.randn(3, columns)
        logits[1] = special
        compare(logits=logits, target=torch.tensor([0, 1, 2]), reduction="none")


class TestLayouts:
    @pytest.mark.parametrize("shape", [(40,), (3, 40), (2, 3, 40), (2, 3, 2, 40), (2, 1, 2, 3, 2, 40)], ids=str)
    @REDUCTIONS
    def test_any_number_of_dimensions_matches_reference(self, shape: tuple[int, ...], reduction: str) -> None:
        compare(logits=torch.randn(shape), target=torch.randint(40, shape[:-1]), reduction=reduction)

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_any_strides_match_reference(self, reduction: str) -> None:
        planes, columns = torch.randn(2, 10, 3, 4), torch.randn(40, 6)
        tokens = torch.randint(10, (1, 4))
        for logits, target in (
            (planes.movedim(1, -1), torch.randint(10, (2, 3, 4))),
            (planes.movedim(1, -1).transpose(0, 1), torch.randint(10, (3, 2, 4))),
            (columns.t(), torch.randint(40, (12,))[::2]),
            (columns.t()[::2, ::3], torch.randint(14, (3,))),
            (torch.randn(1, 4, 10).expand(3, 4, 10), tokens.expand(3, 4)),
            (torch.randn(3, 4, 11)[:, :-1, 1:], torch.randint(10, (3, 4))[:, 1:]),
            (torch.randn(2, 3, 2, 3, 10).permute(3, 2, 1, 0, 4), torch.randint(10, (3, 2, 3, 2))),
        ):
            ours, right = logits.detach().requires_grad_(), logits.detach().clone().requires_grad_()
            loss, expected = (
                function(one, target, reduction=reduction)
                for function, one in ((cross_entropy, ours), (SPEC.reference, right))
            )
            torch.testing.assert_close(loss, expected)
            for cotangent in (torch.randn(loss.shape), torch.randn(()).expand(loss.shape)):
                (gradient,) = torch.autograd.grad(loss, ours, cotangent, retain_graph=True)
                torch.testing.assert_close(
                    gradient, torch.autograd.grad(expected, right, cotangent, retain_graph=True)[0]
                )
                assert gradient.stride() == torch.empty_like(logits).stride()

    @pytest.mark.parametrize("shape", [(0, 10), (0,), (3, 0, 10), (0, 0)], ids=str)
    @REDUCTIONS
    def test_no_rows_match_reference(self, shape: tuple[int, ...], reduction: str) -> None:
        if len(shape) > 1:
            compare(logits=torch.randn(shape), target=torch.zeros(shape[:-1]).long(), reduction=reduction)

    def test_no_classes_make_every_target_bad(self) -> None:
        losses = cross_entropy(torch.randn(2, 0), torch.tensor([0, -100]), reduction="none")
        torch.testing.assert_close(losses, torch.tensor([NAN, 0.0]), equal_nan=True)


@pytest.mark.parametrize("pairs_of_program", [65536, 2048], ids=["one program", "several programs"])
def test_sum_of_many_rows_matches_reference(pairs_of_program: int) -> None:
    rows = 4096 + 700
    logits, target = torch.randn(rows, 2), torch.randint(2, (rows,))
    target[::3] = -100
    with ts.ops.configured(PAIRS=1024, PAIRS_OF_PROGRAM=pairs_of_program):
        compare(logits=logits, target=target)
        compare(logits=logits, target=target, reduction="sum")


class TestWideRows:
    """Rows of any width from any address on: whole vectors between two edges, by one program a row or by several."""

    @pytest.fixture(autouse=True, params=[1, 3, 40], ids="{} parts".format)
    def parts(self, request: pytest.FixtureRequest) -> Iterator[int]:
        with ts.ops.configured(parts=request.param):
            yield request.param

    @staticmethod
    def rows(columns: int, stride: int, first: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Five rows of a larger memory. The first element and the stride decide where vectors begin."""
        memory = torch.randn(first + 5 * stride, dtype=torch.float64).to(dtype)
        return memory[first:].as_strided((5, columns), (stride, 1))

    @pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
    @pytest.mark.parametrize(
        ("columns", "stride", "first"),
        [(2051, 2051, 0), (2048, 2048, 0), (2051, 2056, 0), (2050, 2051, 0), (1100, 1101, 3), (8200, 8203, 0)],
    )
    def test_edges_are_part_of_the_row(self, columns: int, stride: int, first: int, label_smoothing: float) -> None:
        logits = self.rows(columns, stride, first)
        logits[1, -1], logits[4, 0], logits[3, 7] = 200.0, 200.0, INFINITY  # exp(200) is no float32
        target = torch.tensor([0, columns - 1, -100, 3, columns // 2])
        for reduction in ("mean", "none"):
            compare(logits=logits, target=target, label_smoothing=label_smoothing, reduction=reduction)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_of_half_precision(self, dtype: torch.dtype) -> None:
        logits = self.rows(2051, 2051, 0, dtype)
        inputs: dict[str, Any] = {"target": torch.tensor([0, 2050, -100, 3, 1024])}
        found = results_of(cross_entropy, {"logits": logits, **inputs})
        exact = results_of(SPEC.reference, {"logits": logits.double(), **inputs})
        for name, value in found.items():
            torch.testing.assert_close(value.double(), exact[name], rtol=1e-2, atol=1e-6)

    def test_ignored_rows_are_not_read_and_bad_targets_are_nan(self) -> None:
        logits = self.rows(2051, 2051, 0)
        logits[0] = NAN
        good = torch.tensor([-100, 5, 3, 0, 2050])
        right = compare(logits=logits, target=good, reduction="none")
        found = results_of(
            cross_entropy, {"logits": logits, "target": torch.tensor([-100, 5000, 3, -1, 2050]), "reduction": "none"}
        )
        for name, value in found.items():
            assert value[[1, 3]].isnan().all()
            torch.testing.assert_close(value[[0, 2, 4]], right[name][[0, 2, 4]], rtol=0.0, atol=0.0)

    @pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
    @pytest.mark.parametrize(("columns", "edges"), [(50257, True), (9056, False), (1676, True)])
    def test_compiles_to_whole_vectors(self, columns: int, edges: bool, target: str, parts: int) -> None:
        logits = torch.empty(64, columns, dtype=torch.bfloat16, device="meta", requires_grad=True)
        with recorded_plans(target) as plans:
            loss = cross_entropy(logits, torch.empty(64, dtype=torch.int64, device="meta"))
            loss.backward(torch.empty_like(loss))
        launches = [launch for plan in plans for launch in plan.launches if "EDGES" in launch.arguments]
        assert launches[0].kernel.__name__ == "cross_entropy_row_forward_kernel"
        assert launches[0].grid[0] == 64 * parts
        if columns > 2048:
            assert launches[1].kernel.__name__ == "cross_entropy_row_backward_kernel"
        for launch in launches:
            assert launch.arguments["EDGES"] == edges
            binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
            assert not binary.spill_bytes
            if target == "cuda:90":
                assert "ld.global.v4.b32" in binary.assembly["ptx"]


@pytest.mark.parametrize(
    ("rows", "columns", "programs"),
    [
        (1, 128256, 15),
        (1, 256000, 16),
        (64, 128256, 14),
        (193, 200064, 4),
        (220, 256000, 4),
        (265, 256000, 1),
        (64, 16000, 1),
        (64, 24000, 2),
    ],
)
def test_few_long_rows_are_split(rows: int, columns: int, programs: int) -> None:
    """For the 132 multiprocessors of an H200. A row of bf16 has parts of 16 KiB at least."""
    target = torch.empty(rows, dtype=torch.int64, device="meta")
    for reduction in ("mean", "none"):
        with recorded_plans() as plans:
            cross_entropy(torch.empty(rows, columns, dtype=torch.bfloat16, device="meta"), target, reduction=reduction)
        first, *others = plans[0].launches
        assert first.grid[0] == rows * programs
        joined = [one.kernel.__name__ for one in others]
        if programs > 1:
            assert joined == ["cross_entropy_join_kernel"]
        else:
            assert joined == ["sum_losses_kernel"] * (reduction == "mean")


@pytest.mark.parametrize(
    ("rows", "columns", "warps"),
    [
        (345, 262147, 8),
        (508, 200064, 4),
        (940, 49151, 2),
        (2036, 30522, 1),
        (2100, 16064, 1),
        (3184, 50280, 4),
        (17514, 7439, 1),
    ],
)
def test_all_rows_run_at_once_where_they_can(rows: int, columns: int, warps: int) -> None:
    """On an H200's 132 multiprocessors, with as many warps a row as that allows."""
    with recorded_plans() as plans:
        target = torch.empty(rows, dtype=torch.int64, device="meta")
        cross_entropy(torch.empty(rows, columns, dtype=torch.bfloat16, device="meta"), target)
    first = plans[0].launches[0]
    assert (first.grid[0], first.config.num_warps) == (rows, warps)


def test_forward_keeps_nothing_as_large_as_the_logits() -> None:
    kept: list[Tensor] = []
    logits = torch.randn(6, 50, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):  # type: ignore[func-returns-value]
        cross_entropy(logits, torch.randint(50, (6,)))
    assert sum(tensor.numel() for tensor in kept if tensor.data_ptr() != logits.data_ptr()) <= 3 * 6 + 1
