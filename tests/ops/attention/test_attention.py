"""What is attention's own: who sees whom, broadcast biases, dropout, few queries, and what must not go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from differentiation import leaves_of
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops.attention import SPEC
from tilesmith.ops.attention import reference as attention_reference
from tilesmith.ops.attention.operator import attention as as_declared
from tilesmith.ops.attention.operator import native
from tilesmith.ops.attention.reference import bounds, reference, visible
from tilesmith.ops.runtime.kernels import recorded_plans

attention = SPEC.op
INF = float("inf")
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    """In tiles so small that a few dozen queries and keys take several."""
    torch.manual_seed(0)
    with ts.use("interpret"), ts.ops.configured(BLOCK_QUERIES=16, BLOCK_KEYS=16):
        yield


def tensors(queries: int, keys: int, *, batch: int = 2, heads: int = 2, group: int = 2, head: int = 16) -> list[Tensor]:
    shapes = (batch, heads * group, queries, head), (batch, heads, keys, head), (batch, heads, keys, head)
    return [torch.randn(shape) for shape in shapes]


def gradients_of(function: Any, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """The output, and the gradient of every tensor: q, k, v, and the bias where there is one."""
    leaves = leaves_of({"q": tensors[0], "k": tensors[1], "v": tensors[2], **options})
    output = function(**leaves)
    wanted = [value for value in leaves.values() if isinstance(value, Tensor) and value.requires_grad]
    cotangent = torch.arange(output.numel()).mul(1.7).sin().view(output.shape).to(output)
    return [output.detach(), *torch.autograd.grad(output, wanted, cotangent)]


def assert_as_reference(tensors: list[Tensor], atol: float = 1e-5, **options: Any) -> None:
    ours, right = gradients_of(attention, tensors, **options), gradients_of(reference, tensors, **options)
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=atol)


def _on_meta(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in options.items()}


class TestWhoSeesWhom:
    @covering(
        times=2,
        lengths=[(33, 33), (20, 41), (41, 20), (5, 37), (37, 5), (16, 16)],
        options=[
            {},
            {"causal": True},
            {"window": (7, 3)},
            {"window": (-1, 5)},
            {"window": (20, -1)},
            {"window": (0, 0)},
            {"causal": True, "window": (9, 4)},
        ],
    )
    def test_agrees_with_the_reference(self, lengths: tuple[int, int], options: Any) -> None:
        assert_as_reference(tensors(*lengths, batch=1, heads=1), **options)

    def test_the_last_query_stands_at_the_last_key(self) -> None:
        seen = visible(2, 4, *bounds(causal=True, window=None), device=torch.device("cpu"))
        assert seen.tolist() == [[True, True, True, False], [True, True, True, True]]

    def test_as_pytorch_does_where_both_are_as_long(self) -> None:
        q, k, v = tensors(33, 33, group=1)
        right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(attention(q, k, v, causal=True), right)

    def test_a_mask_is_per_key(self) -> None:
        mask = torch.rand(2, 41) > 0.5
        assert_as_reference(tensors(20, 41), mask=mask, causal=True)
        strided = torch.zeros(41, 2, 3, dtype=torch.bool)[..., 1].T
        strided.copy_(mask)
        assert_as_reference(tensors(20, 41), mask=strided)

    def test_keys_that_are_masked_have_no_gradient(self) -> None:
        mask = torch.ones(2, 41, dtype=torch.bool)
        mask[0, 7] = False
        _, _, dk, dv = gradients_of(attention, tensors(20, 41), mask=mask)
        assert dk[0, :, 7].abs().max() == dv[0, :, 7].abs().max() == 0
        assert dk[1, :, 7].abs().min() > 0


class TestPadding:
    """Padding before or after a sequence is skipped: each member of the batch has its own."""

    # From and to which key a mask lets through, of 75 keys in blocks of 16; a hole in the last but one.
    ATTENDED: ClassVar = [(0, 75), (0, 48), (0, 41), (9, 75), (32, 75), (19, 50), (35, 38), (9, 70), (0, 0)]
    HOLE = 7

    def mask(self, keys: int = 75) -> Tensor:
        mask = torch.zeros(len(self.ATTENDED), keys, dtype=torch.bool)
        for member, (first, last) in zip(mask, self.ATTENDED, strict=True):
            member[first:last] = True
        mask[self.HOLE, 37] = False
        return mask

    @pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (20, 3)}], ids=["full", "causal", "window"])
    def test_agrees_with_the_reference(self, options: Any) -> None:
        mask = self.mask()
        assert_as_reference(tensors(20, 75, batch=len(mask), heads=1, group=1), mask=mask, **options)

    def test_a_bias_and_dropout_agree_with_the_reference(self) -> None:
        mask = self.mask()
        options: dict[str, Any] = {
            "mask": mask,
            "bias": torch.randn(1, 20, 75),
            "dropout": 0.2,
            "seed": torch.tensor(3),
        }
        assert_as_reference(tensors(20, 75, batch=len(mask), heads=1, group=1), **options)

    def test_values_of_padding_are_not_read(self) -> None:
        mask = self.mask()
        q, k, v = tensors(20, 75, batch=len(mask), heads=1, group=1)
        right = gradients_of(attention, [q, k, v], mask=mask)
        hidden = ~mask[:, None, :, None]
        masked = gradients_of(attention, [q, k.masked_fill(hidden, INF), v.masked_fill(hidden, INF)], mask=mask)
        torch.testing.assert_close(masked, right, rtol=0, atol=0)

    def test_a_mask_of_more_keys_than_are_read_at_once(self) -> None:
        mask = torch.ones(3, 1100, dtype=torch.bool)
        mask[0, 1060:] = mask[1, :1030] = mask[2, 1050] = False
        with ts.ops.configured(BLOCK_KEYS=128):
            assert_as_reference(tensors(16, 1100, batch=3, heads=1, group=1), mask=mask)


class TestQueriesThatSeeNothing:
    """Zeros, no gradient, no NaN."""

    def check(self, tensors: list[Tensor], blind: Tensor, **options: Any) -> None:
        output, dq, *others = gradients_of(attention, tensors, **options)
        assert output[blind].abs().max() == dq[blind].abs().max() == 0
        for one in (output, dq, *others):
            assert one.isfinite().all()
        right = gradients_of(reference, tensors, **options)
        torch.testing.assert_close([output, dq, *others], right, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("keys", [12, 41])
    def test_for_a_mask_that_hides_all_keys(self, keys: int) -> None:
        mask = torch.ones(2, keys, dtype=torch.bool)
        mask[1] = False
        blind = torch.zeros(2, 4, 20, dtype=torch.bool)
        blind[1] = True
        self.check(tensors(20, keys), blind, mask=mask)

    def test_for_queries_before_the_first_key(self) -> None:
        blind = torch.zeros(2, 4, 41, dtype=torch.bool)
        blind[:, :, :21] = True
        self.check(tensors(41, 20), blind, causal=True)

    @pytest.mark.parametrize("keys", [12, 41])
    def test_for_a_bias_of_minus_infinity(self, keys: int) -> None:
        bias = torch.randn(4, 20, keys)
        bias[2, 5] = -INF
        bias[1, :, 3] = -INF
        blind = torch.zeros(2, 4, 20, dtype=torch.bool)
        blind[:, 2, 5] = True
        self.check(tensors(20, keys), blind, bias=bias)

    def test_without_any_keys(self) -> None:
        output, dq, dk, dv = gradients_of(attention, tensors(5, 0))
        assert output.abs().max() == dq.abs().max() == 0
        assert dk.shape == dv.shape == (2, 2, 0, 16)


BENT = {"causal": True, "softcap": 2.0, "dropout": 0.3, "seed": 5}


class TestBias:
    @pytest.mark.parametrize(
        ("shape", "options"),
        [
            ((2, 3, 17, 18), {}),
            ((1, 3, 17, 18), {}),
            ((2, 1, 17, 18), {}),
            ((17, 18), {}),
            ((2, 3, 1, 18), {}),
            ((18,), {}),
            ((2, 3, 17, 18), BENT),
            *(pytest.param(shape, {}, marks=SLOW) for shape in ((1, 1, 17, 18), (3, 17, 18), (2, 1, 1, 18), (1, 18))),
            *(pytest.param(shape, BENT, marks=SLOW) for shape in ((3, 17, 18), (2, 1, 17, 18), (18,))),
        ],
        ids=str,
    )
    def test_has_the_gradient_of_what_it_broadcasts_to(self, shape: tuple[int, ...], options: Any) -> None:
        assert_as_reference(tensors(17, 18, heads=1, group=3), bias=torch.randn(shape), **options)

    @pytest.mark.parametrize("shape", [(2, 1, 20, 32), (20, 32)], ids=str)
    def test_fetched_by_the_copy_engine_is_the_same_to_the_bit(self, shape: tuple[int, ...]) -> None:
        inputs = tensors(20, 32, heads=1, group=1)
        options: dict[str, Any] = {"bias": torch.randn(shape), "mask": torch.rand(2, 32) > 0.2}
        with ts.ops.configured(described=True):
            with recorded_plans() as plans:
                attention(*(tensor.to("meta") for tensor in inputs), bias=options["bias"].to("meta"))
            assert all(launch.arguments["BIAS_DESCRIBED"] for plan in plans for launch in plan.launches)
            described = gradients_of(attention, inputs, **options)
        with ts.ops.configured(described=False):
            torch.testing.assert_close(gradients_of(attention, inputs, **options), described, rtol=0, atol=0)
        assert_as_reference(inputs, **options)

    @pytest.mark.parametrize("shape", [(1, 2, 17, 18), (2, 17, 18)], ids=str)
    def test_that_the_batch_alone_shares_is_summed_without_a_matrix_of_scores(self, shape: tuple[int, ...]) -> None:
        """Over a grid, whose sequences are short, some of ds is held."""
        halves = [tensor.to("meta", torch.half) for tensor in tensors(17, 18, batch=3, group=1)]
        with ts.ops.configured(chunk_sequences=2), recorded_plans() as plans:
            gradients_of(attention, halves, bias=torch.empty(shape, device="meta", dtype=torch.half))
        names = [launch.kernel.__name__ for plan in plans for launch in plan.launches]
        assert "attention_dbias_kernel" in names
        assert not [name for name in names if "chunk" in name]

    def test_of_few_elements_is_summed_in_shares(self) -> None:
        with recorded_plans() as plans:
            q, k, v = (tensor.to("meta").requires_grad_() for tensor in tensors(20, 41, batch=64))
            bias = torch.empty(41, device="meta", requires_grad=True)
            attention(q, k, v, bias=bias).sum().backward()
        names = [launch.kernel.__name__ for launch in plans[-1].launches]
        assert names[-2:] == ["attention_dbias_kernel", "sum_partials_kernel"]

    def test_without_gradient_costs_no_kernel(self) -> None:
        with recorded_plans() as plans:
            q, k, v = (tensor.to("meta").requires_grad_() for tensor in tensors(20, 41))
            attention(q, k, v, bias=torch.empty(20, 41, device="meta")).sum().backward()
        assert "attention_dbias_kernel" not in [launch.kernel.__name__ for launch in plans[-1].launches]

    def test_may_have_another_dtype_and_any_strides(self) -> None:
        q, k, v = (tensor.bfloat16() for tensor in tensors(20, 41))
        bias = torch.randn(41, 4, 20).permute(1, 2, 0)
        output, *_, dbias = gradients_of(attention, [q, k, v], bias=bias)
        assert (output.dtype, dbias.dtype) == (torch.bfloat16, torch.float32)
        right = gradients_of(reference, [tensor.double() for tensor in (q, k, v)], bias=bias.double())
        torch.testing.assert_close(dbias.double(), right[-1], rtol=0.1, atol=0.05)


class TestDropout:
    def test_drops_in_the_backward_what_it_dropped_in_the_forward(self) -> None:
        assert_as_reference(tensors(20, 41, heads=1), dropout=0.4, seed=2**40 + 3)
        assert_as_reference(tensors(9, 7, heads=1), dropout=0.4, seed=-1)
        assert_as_reference(tensors(2, 90, heads=1), dropout=0.4, seed=3)

    def test_the_seed_decides_alone(self) -> None:
        inputs = tensors(20, 21, batch=1, heads=1)

        def dropped(seed: Any) -> Tensor:
            return attention(*inputs, dropout=0.5, seed=seed)  # type: ignore[no-any-return]

        torch.testing.assert_close(dropped(7), dropped(7), rtol=0, atol=0)
        torch.testing.assert_close(dropped(7), dropped(torch.tensor([7])), rtol=0, atol=0)
        assert not torch.allclose(dropped(7), dropped(8))
        assert not torch.allclose(dropped(7), dropped(7 + 2**32))

    def test_without_a_seed_follows_pytorchs_generator(self) -> None:
        inputs = tensors(20, 21, batch=1, heads=1)
        torch.manual_seed(3)
        first, second = (attention(*inputs, dropout=0.5) for _ in range(2))
        torch.manual_seed(3)
        torch.testing.assert_close(attention(*inputs, dropout=0.5), first, rtol=0, atol=0)
        assert not torch.allclose(first, second)

    def test_keeps_as_many_as_it_says_everywhere(self) -> None:
        """With equal scores and the identity as v, the output shows which weights were kept."""
        q, k, v = torch.zeros(2, 2, 64, 64), torch.zeros(2, 2, 64, 64), torch.eye(64).expand(2, 2, 64, 64)
        kept = attention(q, k, v, dropout=0.25, seed=1) > 0
        assert abs(kept.float().mean() - 0.75) < 0.015
        for dimension in (2, 3):
            assert (kept.float().mean(dimension) - 0.75).abs().max() < 0.3
        heads = kept.view(4, -1).float()
        assert (torch.corrcoef(heads) - torch.eye(4)).abs().max() < 0.06
        rows = kept.reshape(-1, 64).float()
        assert (torch.corrcoef(rows) - torch.eye(256)).abs().max() < 0.75


class TestFewQueries:
    """The keys are split among programs, and heads that share them are taken together."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": (4, 0)},
        "softcap": {"softcap": 2.0},
        "mask": {"mask": torch.arange(66)[None].expand(2, 66) % 7 != 0},
        "bias": {"bias": torch.arange(66.0).sin().expand(4, 3, 66)},
        "dropout": {"dropout": 0.3, "seed": 1},
    }

    @covering(kind=list(OPTIONS), fields=[{}, {"least_blocks": 1, "programs_per_multiprocessor": 16}])
    def test_agree_with_the_reference(self, kind: str, fields: Any) -> None:
        with ts.ops.configured(**fields):
            assert_as_reference(tensors(3, 66), **self.OPTIONS[kind])

    def test_and_none_of_a_share_in_sight(self) -> None:
        mask = torch.zeros(2, 90, dtype=torch.bool)
        mask[0, 80] = True
        with ts.ops.configured(least_blocks=1, programs_per_multiprocessor=16):
            assert_as_reference(tensors(1, 90), mask=mask)

    def test_fill_the_gpu(self) -> None:
        with recorded_plans() as plans, ts.ops.configured(BLOCK_KEYS=64):
            q = torch.empty(1, 8, 1, 128, device="meta", dtype=torch.bfloat16)
            k = torch.empty(1, 1, 65536, 128, device="meta", dtype=torch.bfloat16)
            attention(q, k, k)
        split, combine = plans[-1].launches
        assert split.grid[0] >= 100
        assert combine.kernel.__name__ == "attention_combine_kernel"


class TestHeads:
    @pytest.mark.parametrize("head", [1, 8, 20, 64, 80, 96, 130])
    def test_of_any_size(self, head: int) -> None:
        assert_as_reference(tensors(9, 21, batch=1, group=1, head=head), causal=True)

    def test_of_more_columns_than_a_tile_takes_are_left_to_pytorch(self) -> None:
        assert_as_reference(tensors(5, 7, head=300))

    @pytest.mark.parametrize("group", [1, 3, 8])
    def test_share_keys(self, group: int) -> None:
        assert_as_reference(tensors(20, 41, heads=1, group=group), causal=True)

    @covering(
        least_programs=[1, 30, 10**6],
        lengths=[(20, 41), (9, 14)],  # the second: one kernel for dq, dk and dv
        options=[{}, {"causal": True}, {"softcap": 2.0}, {"mask": torch.arange(41) % 3 > 0}],
    )
    def test_split_over_programs_have_the_same_gradients(
        self, least_programs: int, lengths: tuple[int, int], options: dict[str, Any]
    ) -> None:
        inputs = tensors(*lengths, heads=2, group=6)
        if "mask" in options:
            options = {"mask": options["mask"][: lengths[1]].expand(2, -1)}
        with ts.ops.configured(least_programs=least_programs), recorded_plans() as plans:
            gradients_of(attention, [one.to("meta") for one in inputs], **_on_meta(options))
        kernels = [launch.kernel.__name__ for plan in plans for launch in plan.launches]
        assert ("attention_add_parts_kernel" in kernels) == (least_programs > 1)
        with ts.ops.configured(least_programs=least_programs):
            assert_as_reference(inputs, **options)

    def test_split_into_as_few_parts_as_make_enough_programs(self) -> None:
        with recorded_plans() as plans, ts.ops.configured(least_programs=30):
            gradients_of(attention, [one.to("meta") for one in tensors(20, 41, batch=1, heads=2, group=12)])
        launches = {launch.kernel.__name__: launch for plan in plans for launch in plan.launches}
        # 2 key heads of 3 blocks are 6 programs; 5 parts would do, and 6 divide 12.
        assert launches["attention_add_parts_kernel"].arguments["n_parts"] == 6
        assert launches["attention_dkdv_kernel"].grid[0] == 36


class TestLayouts:
    def test_positions_before_heads_cost_no_copy(self) -> None:
        q, k, v = (torch.randn(2, 20, 4, 16).transpose(1, 2) for _ in range(3))
        output = attention(q, k, v)
        assert output.stride() == q.stride()
        torch.testing.assert_close(output, reference(q, k, v))

    def test_slices_of_one_packed_projection(self) -> None:
        packed = torch.randn(2, 20, 3, 4, 16)
        assert_as_reference(list(packed.permute(2, 0, 3, 1, 4)), causal=True)

    def test_pointers_and_descriptors_agree_to_the_bit(self) -> None:
        inputs = tensors(20, 41)
        described = gradients_of(attention, inputs, causal=True)
        with ts.ops.configured(described=False):
            torch.testing.assert_close(gradients_of(attention, inputs, causal=True), described, rtol=0, atol=0)

    def test_rows_further_apart_than_32_bits_count(self) -> None:
        """Few elements, in memory that is never touched but for them."""
        far = torch.empty(2**31 + 2**20, dtype=torch.float32)
        q = far.as_strided((1, 1, 3, 16), (0, 0, 2**30, 1))
        q.copy_(torch.randn(1, 1, 3, 16))
        k, v = torch.randn(1, 1, 5, 16), torch.randn(1, 1, 5, 16)
        torch.testing.assert_close(attention(q, k, v), reference(q, k, v))

    @pytest.mark.parametrize("shape", [(0, 2, 5, 16), (2, 0, 5, 16), (2, 2, 0, 16), (2, 2, 5, 0)], ids=str)
    def test_empty(self, shape: tuple[int, ...]) -> None:
        q, k, v = (torch.randn(shape) for _ in range(3))
        found = gradients_of(attention, [q, k, v])
        assert [one.shape for one in found] == [torch.Size(shape)] * 4


class TestNumbersAtTheEdge:
    @pytest.mark.parametrize("keys", [10, 41])
    def test_scores_far_below_zero(self, keys: int) -> None:
        """Where zero is larger than any score, keys that there are not must not outweigh those that there are."""
        q, k, v = tensors(9, keys)
        assert_as_reference([q, k, v], bias=torch.full((9, keys), -300.0), atol=1e-4)

    def test_scores_far_above_zero(self) -> None:
        q, k, v = tensors(20, 41)
        assert_as_reference([q, k, v], bias=torch.full((20, 41), 300.0), causal=True, atol=1e-4)

    def test_scores_far_apart(self) -> None:
        q, k, v = tensors(20, 41)
        ours, right = attention(q * 50, k * 50, v), reference(q * 50, k * 50, v)
        torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-3)

    def test_a_soft_cap_bends_large_scores_and_leaves_small_ones(self) -> None:
        q, k, v = tensors(20, 41)
        assert_as_reference([q * 30, k, v], softcap=5.0)
        torch.testing.assert_close(attention(q, k, v, softcap=1e4), attention(q, k, v), rtol=1e-3, atol=1e-3)


def test_nothing_of_the_size_of_the_scores_is_kept() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    q, k, v = (tensor.requires_grad_() for tensor in tensors(41, 41))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = attention(q, k, v, causal=True)
    beside_inputs = [tensor for tensor in kept if tensor.data_ptr() not in {one.data_ptr() for one in (q, k, v)}]
    assert [tuple(tensor.shape) for tensor in beside_inputs] == [tuple(output.shape), (2, 4, 41)]


def test_autocast_computes_in_its_dtype() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(*tensors(9, 9)).dtype == torch.bfloat16


class TestBadInput:
    @pytest.mark.parametrize("mode", ["auto", "interpret"])
    @pytest.mark.parametrize(
        ("wrong", "kind", "words"),
        [
            ({"q": torch.ones(4, 9, 16)}, ValueError, r"q has shape \(4, 9, 16\), but must have 4 dimensions"),
            ({"k": torch.ones(2, 2, 9, 8)}, ValueError, "k has a head size of 8, but q of 16"),
            ({"k": torch.ones(2, 2, 9, 16).half()}, TypeError, "k has dtype float16, but q has float32; they must be"),
            ({"v": torch.ones(2, 2, 8, 16)}, ValueError, r"v has shape \(2, 2, 8, 16\), but k has \(2, 2, 9, 16\)"),
            (
                {"k": torch.ones(2, 3, 9, 16), "v": torch.ones(2, 3, 9, 16)},
                ValueError,
                "k has 3 heads, which do not divide the 4 of q",
            ),
            (
                {"k": torch.ones(1, 2, 9, 16), "v": torch.ones(1, 2, 9, 16)},
                ValueError,
                "k has a batch of 1, but q of 2",
            ),
            (
                {"mask": torch.ones(2, 8, dtype=torch.bool)},
                ValueError,
                r"mask has shape \(2, 8\), but must be boolean \[batch, keys\], or broadcast to",
            ),
            ({"mask": torch.ones(2, 9)}, ValueError, r"mask has shape \(2, 9\), but must be boolean \[batch, keys\]"),
            ({"mask": torch.ones(2, 9, dtype=torch.int64)}, TypeError, "mask has dtype int64, but must be bool"),
            ({"mask": torch.ones(1, 9, dtype=torch.int64)}, TypeError, "mask has dtype int64, but must be bool"),
            ({"mask": torch.ones(3, 1, 1, 9) > 0}, ValueError, r"mask has shape \(3, 1, 1, 9\), but must be boolean"),
            ({"mask": (torch.ones(9, 9) > 0).to("meta")}, ValueError, "mask is on meta, but q is on cpu"),
            ({"mask": [True]}, TypeError, "mask is a list, but must be a tensor"),
            ({"bias": torch.ones(9, 1)}, ValueError, r"bias has shape \(9, 1\), but must end in the 9 keys"),
            ({"bias": torch.ones(3, 9, 9)}, ValueError, r"bias has shape \(3, 9, 9\), but must end in the 9 keys and"),
            ({"bias": torch.ones(1, 1, 1, 9, 9)}, ValueError, "bias has shape"),
            ({"scale": 0.0}, ValueError, "scale is 0.0, but must be positive and finite"),
            ({"scale": -1.0}, ValueError, "scale is -1.0, but must be positive and finite"),
            ({"softcap": -1.0}, ValueError, "softcap is -1.0, but must be at least 0"),
            ({"dropout": 1.0}, ValueError, "dropout is 1.0, but must be less than 1"),
            ({"dropout": 0.5, "seed": "x"}, TypeError, "seed is a str, but must be a whole number or a tensor"),
            ({"dropout": 0.5, "seed": True}, TypeError, "seed is a bool, but must be a whole number or a tensor"),
            (
                {"dropout": 0.5, "seed": torch.ones(2)},
                ValueError,
                "seed is a tensor float32 of 2 elements, but must be",
            ),
            ({"window": 5}, ValueError, "window is 5, but must be two whole numbers"),
            ({"window": (1, -2)}, ValueError, r"window is \(1, -2\), but must be two whole numbers"),
        ],
        ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
    )
    def test_is_named(self, mode: Any, wrong: dict[str, Any], kind: type[Exception], words: str) -> None:
        q, k, v = tensors(9, 9)
        with ts.use(mode), pytest.raises(kind, match=f"^attention: {words}"):
            attention(**{"q": q, "k": k, "v": v, **wrong})


class TestWhoComputes:
    """PyTorch may be asked where it is faster. What it has no kernel for, it would compute with all scores at once."""

    q = torch.empty(1, 4, 64, 16, device="meta")

    def fused(self, keys: int = 64, key_heads: int = 4, **options: Any) -> bool:
        k = torch.empty(1, key_heads, keys, 16, device="meta")
        *_, is_fused, _ = as_declared.bucket_for(q=self.q, k=k, v=k, **options).split()
        return is_fused == "True"

    @pytest.mark.parametrize(
        "options",
        [
            {"softcap": 2.0}, {"dropout": 0.1, "seed": torch.zeros(1, dtype=torch.int64)}, {"window": (3, 0)},
            {"window": (-1, 2)}, {"mask": torch.ones(1, 64, dtype=torch.bool)}, {"bias": torch.zeros(64, 64)},
            {"causal": True, "keys": 65},
        ],
        ids=lambda options: next(iter(options)),
    )  # fmt: skip
    def test_what_pytorch_has_no_kernel_for_is_told_apart(self, options: dict[str, Any]) -> None:
        assert not self.fused(**options)

    def test_what_it_has_one_for_is_so_in_every_form(self) -> None:
        assert self.fused()
        assert self.fused(keys=65)
        assert self.fused(causal=True)
        assert self.fused(window=(-1, 0))
        assert self.fused(key_heads=1)

    def test_groups_of_heads_are_told_apart(self) -> None:
        k = torch.empty(1, 2, 64, 16, device="meta")
        assert as_declared.bucket_for(q=self.q, k=self.q, v=self.q) != as_declared.bucket_for(q=self.q, k=k, v=k)

    def test_a_window_that_is_causal_is_causal_to_pytorch_too(self) -> None:
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 2, 5, 16)
        with ts.use("torch"):
            torch.testing.assert_close(attention(q, k, v, window=(-1, 0)), attention(q, k, v, causal=True))
            torch.testing.assert_close(attention(q, k, v, window=(-1, -1)), attention(q, k, v))

    @pytest.mark.parametrize(("dtype", "unfolded"), [(torch.float32, True), (torch.bfloat16, False)], ids=str)
    def test_groups_in_single_precision_are_unfolded_for_pytorch_on_a_gpu(
        self, dtype: torch.dtype, unfolded: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise it makes all scores: its one kernel for single precision does not know groups."""

        class OnGPU(Tensor):
            is_cuda = True

        seen: list[tuple[int, int, bool]] = []

        def noted(q: Tensor, k: Tensor, v: Tensor, *, enable_gqa: bool, **_: Any) -> Tensor:
            seen.append((k.shape[1], v.shape[1], enable_gqa))
            return q

        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
        q, k = (torch.randn(1, heads, 3, 16, dtype=dtype).as_subclass(OnGPU) for heads in (4, 2))
        native(q, k, k, True, None, None, None, None, 0.0, 0.0, None)
        assert seen == [(4, 4, False) if unfolded else (2, 2, True)]


class TestTheReferenceInPieces:
    """Where all scores at once would take too much memory."""

    SHAPE = SEQUENCES, HEADS, QUERIES, KEYS = 3, 4, 5, 6

    @pytest.mark.parametrize("most", [4 * 5 * 6 * 2, 5 * 6, 1], ids=["two sequences", "one head", "less than one head"])
    @pytest.mark.parametrize("bias_shape", [None, (5, 6), (4, 5, 6), (1, 4, 5, 6), (3, 1, 5, 6), (3, 4, 5, 6)], ids=str)
    def test_is_the_same(self, most: int, bias_shape: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        q = torch.randn(self.SEQUENCES, self.HEADS, self.QUERIES, 8, dtype=torch.float64)
        k, v = (torch.randn(self.SEQUENCES, 2, self.KEYS, 8, dtype=torch.float64) for _ in range(2))
        bias = None if bias_shape is None else torch.randn(bias_shape, dtype=torch.float64)
        given = {"q": q, "k": k, "v": v, "bias": bias, "mask": torch.rand(self.SEQUENCES, self.KEYS) > 0.2}
        found = []
        for limit in (attention_reference.MOST_SCORES, most):
            monkeypatch.setattr(attention_reference, "MOST_SCORES", limit)
            leaves = leaves_of(given)
            made = reference(**leaves, causal=True)
            floating = [one for one in leaves.values() if one is not None and one.is_floating_point()]
            found.append([made, *torch.autograd.grad(made.sin().sum(), floating)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)

    def test_takes_as_many_sequences_at_once_as_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        plain = attention_reference.in_one_piece

        def watched(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *more: Any) -> Tensor:
            assert bias is not None
            seen.append((tuple(q.shape[:2]), tuple(bias.shape)))
            return plain(q, k, v, bias, *more)

        monkeypatch.setattr(attention_reference, "in_one_piece", watched)
        monkeypatch.setattr(attention_reference, "MOST_SCORES", 2 * self.HEADS * self.QUERIES * self.KEYS)
        q, k = torch.randn(*self.SHAPE[:3], 8), torch.randn(self.SEQUENCES, self.HEADS, self.KEYS, 8)
        reference(q, k, k, bias=torch.randn(self.HEADS, self.QUERIES, self.KEYS))
        shared = (1, self.HEADS, self.QUERIES, self.KEYS)
        assert seen == [((2, self.HEADS), shared), ((1, self.HEADS), shared)]
