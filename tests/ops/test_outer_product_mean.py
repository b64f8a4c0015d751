"""outer_product_mean: masks, chunks, tiles and large values. Tests for all operators cover the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from differentiation import assert_same, cotangent_of, forward_and_backward
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops.outer_product_mean import few_sequences_backward as few_backward
from tilesmith.ops.outer_product_mean import separate_products_forward as separate
from tilesmith.ops.outer_product_mean.backward_passes import scaled_gradient, transposed
from tilesmith.ops.outer_product_mean.few_sequences_backward import scaled_transposed
from tilesmith.ops.outer_product_mean.few_sequences_forward import is_for_few
from tilesmith.ops.outer_product_mean.operator import has_exact_products, outer_product_mean, reference
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.spec import Inputs

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])
WITH_AND_WITHOUT_OUTER_PRODUCTS = pytest.mark.parametrize("sequences", [5, 2])


def made(batch: int = 1, sequences: int = 5, residues: int = 6, channels: int = 3, outputs: int = 4) -> Inputs:
    torch.manual_seed(0)
    return {
        "a": torch.randn(batch, sequences, residues, channels),
        "b": torch.randn(batch, sequences, residues, channels),
        "mask": torch.rand(batch, sequences, residues) > 0.3,
        "weight": torch.randn(outputs, channels**2),
        "bias": torch.randn(outputs),
    }


def test_matches_published_algorithm_pair_by_pair() -> None:
    inputs = made()
    a, b, mask, weight, bias = inputs.values()
    z = outer_product_mean(**inputs, eps=1e-3)
    for i in range(6):
        for j in range(6):
            both = [s for s in range(5) if mask[0, s, i] and mask[0, s, j]]
            total = sum((torch.outer(a[0, s, i], b[0, s, j]) for s in both), torch.zeros(3, 3))
            wanted = (weight @ total.flatten() + bias) / (1e-3 + len(both)) if both else torch.zeros(4)
            torch.testing.assert_close(z[0, i, j], wanted)


def test_several_tiles_match_reference() -> None:
    inputs = made(sequences=40, residues=17, channels=2, outputs=18)
    with ts.use("interpret"), ts.ops.configured(BLOCK_I=16, BLOCK_J=1, BLOCK_OUTPUTS=16):
        ours = outer_product_mean(**inputs)
    torch.testing.assert_close(ours, reference(**inputs))


@covering(times=2, mode=["auto", "interpret"], sequences=[5, 2], chunk=[1, 4, 6, 100])
def test_chunked_equals_unchunked(mode: Any, chunk: int, sequences: int) -> None:
    inputs = made(batch=2, sequences=sequences)
    with ts.use(mode):
        whole = forward_and_backward(outer_product_mean, inputs)
        chunked = forward_and_backward(lambda **named: outer_product_mean(**named, chunk=chunk), inputs)
    assert_same(chunked, whole)


@BOTH_WAYS
@WITH_AND_WITHOUT_OUTER_PRODUCTS
@pytest.mark.parametrize("junk", [1e4, float("inf"), float("nan")])
def test_masked_elements_have_no_influence_and_no_gradient(mode: Any, junk: float, sequences: int) -> None:
    inputs = made(sequences=sequences)
    hidden = ~inputs["mask"]
    perturbed = {**inputs, **{name: inputs[name].masked_fill(hidden[..., None], junk) for name in ("a", "b")}}
    with ts.use(mode):
        right, ours = (forward_and_backward(outer_product_mean, one) for one in (inputs, perturbed))
    for name, value in right.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=0)
    for name in ("gradient of a", "gradient of b"):
        assert not ours[name][hidden].any()
        assert ours[name][~hidden].any()


@BOTH_WAYS
@WITH_AND_WITHOUT_OUTER_PRODUCTS
def test_fully_masked_residues_get_zeros(mode: Any, sequences: int) -> None:
    inputs = made(sequences=sequences)
    inputs["mask"][:, :, 2] = False
    with ts.use(mode):
        found = forward_and_backward(outer_product_mean, inputs)
    assert not found["output 0"][:, 2].any()
    assert not found["output 0"][:, :, 2].any()
    assert all(value.isfinite().all() for value in found.values())


@BOTH_WAYS
@WITH_AND_WITHOUT_OUTER_PRODUCTS
@pytest.mark.parametrize("projected", [True, False])
@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_pairs_that_no_sequence_has_get_zeros(mode: Any, sequences: int, projected: bool, eps: float) -> None:
    """At eps 0 too, and where the residue that exists holds NaN or infinity: zero times either is NaN."""
    inputs = made(sequences=sequences) | {"eps": eps}
    inputs["mask"] = torch.ones_like(inputs["mask"])
    inputs["mask"][:, :, 2] = False
    if not projected:
        del inputs["weight"], inputs["bias"]
    poisoned = {**inputs, "a": inputs["a"].clone()}
    poisoned["a"][:, 0, 0, 1], poisoned["a"][:, 1, 1, 0] = float("nan"), float("inf")
    with ts.use(mode):
        found = forward_and_backward(outer_product_mean, inputs)
        output = outer_product_mean(**poisoned)
    assert all(value.isfinite().all() for value in found.values())
    for one in (found["output 0"], output):
        assert torch.equal(one[:, 2], torch.zeros_like(one[:, 2]))
        assert torch.equal(one[:, :, 2], torch.zeros_like(one[:, :, 2]))
    assert output[:, 0, 0].isnan().any()


@BOTH_WAYS
@WITH_AND_WITHOUT_OUTER_PRODUCTS
def test_gradient_of_a_pair_that_no_sequence_has_reaches_nothing(mode: Any, sequences: int) -> None:
    inputs = made(sequences=sequences)
    inputs["mask"][:, :, 2] = False
    leaves = {name: one.requires_grad_() if one.is_floating_point() else one for name, one in inputs.items()}
    with ts.use(mode):
        output = outer_product_mean(**leaves)
        cotangent = torch.ones_like(output)
        cotangent[:, 2, 1] = float("nan")
        torch.autograd.backward(output, cotangent)
    assert all(one.grad.isfinite().all() for one in leaves.values() if one.requires_grad)


def test_large_values_do_not_overflow_in_float16() -> None:
    """Sums over 1024 sequences of products of 100 · 100 overflow float16. Their mean does not."""
    shape = (1, 1024, 2, 1)
    inputs = {
        "a": torch.full(shape, 100.0, dtype=torch.float16),
        "b": torch.full(shape, 100.0, dtype=torch.float16),
        "mask": None,
        "weight": torch.full((1, 1), 0.5, dtype=torch.float16),
    }
    with ts.use("interpret"):
        found = forward_and_backward(outer_product_mean, inputs)
    torch.testing.assert_close(found["output 0"], torch.full((1, 2, 2, 1), 5000.0, dtype=torch.float16))
    exact = {name: value.double() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    wanted = forward_and_backward(reference, exact)["gradient of weight"]
    torch.testing.assert_close(found["gradient of weight"].double(), wanted, rtol=2e-3, atol=0)


def test_float16_gradients_match_float64() -> None:
    """Only float16 divides its operands before it multiplies them."""
    inputs = made(batch=2, sequences=70, residues=5, channels=4, outputs=3)
    half = {name: value.half() if value.is_floating_point() else value for name, value in inputs.items()}
    exact = {name: value.double() if value.is_floating_point() else value for name, value in half.items()}
    with ts.use("interpret"):
        found = forward_and_backward(outer_product_mean, half)
    for name, value in forward_and_backward(reference, exact).items():
        torch.testing.assert_close(found[name].double(), value, rtol=4e-3, atol=4e-3 * float(value.abs().max()))


@pytest.mark.parametrize("blocks", [{"BLOCK_FIRST": 2, "BLOCK_SECOND": 4}, {"BLOCK_FIRST": 16, "BLOCK_SECOND": 1}, {}])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 7, 3), (3, 4, 2, 16)], ids=str)
def test_transposed_equals_torch_transpose(shape: tuple[int, ...], blocks: dict[str, int]) -> None:
    source = torch.randn(shape)
    with ts.use("interpret"), ts.ops.configured(**blocks):
        torch.testing.assert_close(transposed(source), source.transpose(1, 2).contiguous(), rtol=0, atol=0)


@pytest.mark.parametrize("blocks", [{"BLOCK_PAIRS": 2, "BLOCK_OUTPUTS": 4, "programs_per_multiprocessor": 3}, {}])
@pytest.mark.parametrize("strided", [False, True])
def test_scaled_gradient_takes_any_strides_and_sums_all_pairs(strided: bool, blocks: dict[str, int]) -> None:
    torch.manual_seed(0)
    dz = torch.randn(6, 10, 5).transpose(0, 2)[:, ::2] if strided else torch.randn(5, 5, 6)
    factor = torch.rand(dz.shape[:2])
    with ts.use("interpret"), ts.ops.configured(**blocks):
        found, total = scaled_gradient(dz, factor)
    assert found.is_contiguous()
    torch.testing.assert_close(found, dz * factor[..., None])
    torch.testing.assert_close(total, (dz * factor[..., None]).sum((0, 1)))


def test_weight_without_outputs_matches_reference() -> None:
    inputs = made(outputs=0)
    with ts.use("interpret"):
        found = forward_and_backward(outer_product_mean, inputs)
    assert_same(found, forward_and_backward(reference, inputs))


@BOTH_WAYS
@pytest.mark.parametrize(("batch", "sequences", "residues"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_tensors_match_reference(mode: Any, batch: int, sequences: int, residues: int) -> None:
    inputs = made(batch, sequences, residues)
    with ts.use(mode):
        found = forward_and_backward(outer_product_mean, inputs)
    assert_same(found, forward_and_backward(reference, inputs))


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"a": torch.ones(5, 6, 3)}, ValueError, r"a has shape \(5, 6, 3\), but must be \[batch, sequences,"),
        ({"b": torch.ones(1, 5, 6, 2)}, ValueError, r"b has shape \(1, 5, 6, 2\), but a has \(1, 5, 6, 3\)"),
        ({"mask": torch.ones(1, 5, 6)}, TypeError, "mask has dtype float32, but must be bool"),
        ({"mask": torch.ones(5, 6) > 0}, ValueError, r"mask has shape \(5, 6\), but must be \[batch, sequences,"),
        ({"mask": True}, TypeError, "mask is a bool, but must be a tensor"),
        ({"weight": torch.ones(4, 3)}, ValueError, r"weight has shape \(4, 3\), but must have .* 9 columns"),
        ({"weight": None}, ValueError, "bias is given, but there is no weight"),
        ({"weight": torch.ones(4, 9).half()}, TypeError, "weight has dtype float16, but a has float32"),
        ({"bias": torch.ones(5)}, ValueError, r"bias has shape \(5,\), but must be a vector of 4 elements"),
        ({"chunk": 0}, ValueError, "chunk is 0, but must be at least 1"),
        ({"chunk": 2.0}, TypeError, "chunk is a float, but must be a whole number"),
        ({"eps": -1.0}, ValueError, "eps is -1.0, but must be at least 0"),
    ],
)
def test_bad_input_raises_error_that_names_it(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^outer_product_mean: {words}"):
        outer_product_mean(**{**made(), **arguments})


def test_opcheck_accepts_backward_passes() -> None:
    with ts.use("interpret"):
        torch.library.opcheck(torch.ops.tilesmith.outer_product_mean_scaled, (torch.randn(3, 4, 5), torch.rand(3, 4)))
        torch.library.opcheck(torch.ops.tilesmith.outer_product_mean_transposed, (torch.randn(2, 3, 4, 5),))
        given = torch.randn(2, 3, 3, 4), torch.rand(6, 3), 1.0
        torch.library.opcheck(torch.ops.tilesmith.outer_product_mean_scaled_transposed, given)


def with_gradients(function: Callable[..., Tensor], inputs: Inputs) -> list[Tensor]:
    """Return the result and all gradients, for a random cotangent."""
    leaves = {name: one.clone().requires_grad_(name != "mask") for name, one in inputs.items() if one is not None}
    z = function(**leaves)
    cotangent = torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).to(z.dtype)
    return [z.detach(), *torch.autograd.grad(z, [one for name, one in leaves.items() if name != "mask"], cotangent)]


@pytest.mark.parametrize("chunk", [None, 2])
@covering(masked=[False, True], biased=[True, False])
def test_separate_products_match_float64_within_float32_rounding(masked: bool, biased: bool, chunk: int | None) -> None:
    torch.manual_seed(0)
    a, b, weight = torch.randn(2, 9, 5, 4), torch.randn(2, 9, 5, 4), torch.randn(6, 16) / 4
    bias = torch.randn(6) if biased else None
    mask = None
    if masked:
        mask = torch.rand(2, 9, 5) > 0.4
        mask[:, :, 3] = False
        a = a.masked_fill(~mask[..., None], float("nan"))
    assert has_exact_products(a, b, mask, weight)
    assert not is_for_few(a, weight)
    with ts.use("interpret"):
        found = outer_product_mean(a, b, mask, weight, bias, chunk=chunk)
    right = reference(a.double(), b.double(), mask, weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-6 * float(right.abs().max()))


@pytest.mark.parametrize(("dtype", "has_weight"), [(torch.float32, True), (torch.float32, False), (torch.half, True)])
def test_exact_products_with_a_weight_are_separate(dtype: torch.dtype, has_weight: bool) -> None:
    a = torch.empty(1, 467, 128, 32, dtype=dtype, device="meta")
    weight = a.new_empty(128, 32 * 32) if has_weight else None
    with ts.use("triton"), recorded_plans("cuda:90") as plans:
        outer_product_mean(a, a, weight=weight)
    kernels = [one.kernel.__name__ for plan in plans for one in plan.launches]
    is_separate = dtype == torch.float32 and has_weight
    assert ("outer_product_mean_forward_kernel" not in kernels) is is_separate


def test_separate_products_of_pairs_that_no_sequence_has_are_zeros() -> None:
    a, b, weight = torch.randn(1, 3, 4, 2), torch.randn(1, 3, 4, 2), torch.randn(5, 4)
    mask = torch.ones(1, 3, 4, dtype=torch.bool)
    mask[:, :, 2] = False
    b[:, :, 1] = float("nan")
    with ts.use("interpret"):
        found = separate.forward(a, b, mask, weight, None, None, 1e-3, False)
    assert (found[:, 2] == 0).all()
    assert found[:, 0, 1].isnan().all()


class TestFewSequences:
    """Few sequences in exact float32 are computed without outer products."""

    @covering(masked=[False, True], biased=[True, False])
    def test_matches_float64_within_float32_rounding(self, masked: bool, biased: bool) -> None:
        """The result and its gradients, with several tiles of residues and of outputs."""
        torch.manual_seed(0)
        given: dict[str, Any] = {
            "a": torch.randn(2, 3, 17, 4), "b": torch.randn(2, 3, 17, 4), "weight": torch.randn(18, 16) / 4,
            "bias": torch.randn(18) if biased else None,
            "mask": torch.rand(2, 3, 17) > 0.4 if masked else None,
        }  # fmt: skip
        assert is_for_few(given["a"], given["weight"])
        assert few_backward.is_for_few(given["a"], given["weight"])
        with ts.use("interpret"), ts.ops.configured(BLOCK_J=16, BLOCK_OUTPUTS=16):
            found = with_gradients(outer_product_mean, given)
        wide = {name: one.double() if name != "mask" and one is not None else one for name, one in given.items()}
        for ours, right in zip(found, with_gradients(reference, wide), strict=True):
            torch.testing.assert_close(ours.double(), right, rtol=0, atol=1e-6 * float(right.abs().max()))

    def test_any_strides_match_reference(self) -> None:
        torch.manual_seed(0)
        a, b = torch.randn(2, 9, 2, 4).transpose(1, 2), torch.randn(2, 2, 9, 8)[..., ::2]
        weight, bias = torch.randn(16, 3).t(), torch.randn(6)[::2]
        given = {"a": a, "b": b, "weight": weight, "bias": bias}
        with ts.use("interpret"):
            found = forward_and_backward(outer_product_mean, given)
        for name, value in forward_and_backward(reference, given).items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        ("sequences", "batch", "dtype", "few"),
        [
            (16, 4, torch.float32, True),
            (16, 4, torch.bfloat16, False),
            (128, 1, torch.float32, False),  # fewer flops with outer products
            (16, 64, torch.float32, False),  # too much memory
        ],
    )
    def test_forward_without_outer_products_where_that_is_less_work(
        self, sequences: int, batch: int, dtype: torch.dtype, few: bool
    ) -> None:
        a = torch.empty(batch, sequences, 64, 32, device="meta", dtype=dtype)
        assert is_for_few(a, torch.empty(128, 32**2, device="meta", dtype=dtype)) is few
        assert not is_for_few(a, None)

    @pytest.mark.parametrize("wanted", ["a", "b", "weight", "bias"])
    def test_only_the_wanted_gradient_is_computed(self, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
        made_gradients: list[bool] = []

        def noted(*arguments: Any) -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = few_backward.compute_backward(*arguments)
            made_gradients.extend(one.numel() > 0 for one in found)
            return found

        inputs = made(sequences=2)
        with ts.use("interpret"):
            whole = forward_and_backward(outer_product_mean, inputs)
            monkeypatch.setattr(few_backward.backward, "_composed", noted)
            leaf = inputs[wanted].clone().requires_grad_()
            z = outer_product_mean(**{**inputs, wanted: leaf})
            (gradient,) = torch.autograd.grad(z, leaf, cotangent_of(z))
        torch.testing.assert_close(gradient, whole[f"gradient of {wanted}"], rtol=0, atol=0)
        assert made_gradients == [name == wanted for name in ("a", "b", "weight", "bias")]

    @pytest.mark.parametrize(
        ("shape", "outputs", "few"),
        [
            ((4, 16, 64, 32), 128, True),
            ((4, 24, 64, 32), 128, False),  # fewer flops with outer products
            ((64, 16, 64, 32), 128, False),  # too much memory for W · b
            ((64, 1, 8, 128), 128, False),  # too much memory for the partial sums of dW
        ],
    )
    def test_backward_without_outer_products_where_that_is_less_work(
        self, shape: tuple[int, ...], outputs: int, few: bool
    ) -> None:
        a, weight = torch.empty(shape, device="meta"), torch.empty(outputs, shape[-1] ** 2, device="meta")
        assert few_backward.is_for_few(a, weight) is few
        assert not few_backward.is_for_few(a.half(), weight.half())
        assert not few_backward.is_for_few(a, None)

    def test_no_pass_changes_the_layout_between_gemms_on_a_gpu(self) -> None:
        """As nn.OuterProductMean calls it: a and b are halves of one projection."""
        both = torch.empty(4, 16, 64, 64, device="meta", requires_grad=True)
        weight, bias = torch.empty(128, 32**2, device="meta"), torch.empty(128, device="meta")
        with recorded_plans("cuda:90") as plans:
            a, b = both.chunk(2, dim=-1)
            z = outer_product_mean(a, b, None, weight.requires_grad_(), bias.requires_grad_())
            z.backward(torch.empty_like(z))  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        names = [launch.kernel.__name__ for plan in plans for launch in plan.launches]
        passes = [name for name in names if name.startswith("outer_product")]
        assert passes == ["outer_product_epilogue_kernel", "outer_product_scale_transpose_kernel"]
        products = [plan for plan in plans if plan.kernels == "matmul_forward"]
        assert len(products) == 7
        assert not any("split_bf16x3" in name or "pointers" in name for name in names)

    @pytest.mark.parametrize("strided", [False, True])
    @pytest.mark.parametrize("blocks", [{"BLOCK_J": 2, "BLOCK_OUTPUTS": 4}, {}])
    def test_scaled_transpose_takes_any_strides_and_sums_all_pairs(self, strided: bool, blocks: dict[str, int]) -> None:
        torch.manual_seed(0)
        dz = torch.randn(6, 5, 10, 2).permute(3, 1, 2, 0)[:, :, ::2] if strided else torch.randn(2, 5, 5, 6)
        factors = torch.rand(2, 5, 5)
        with ts.use("interpret"), ts.ops.configured(**blocks):
            of_each, total = scaled_transposed(dz, factors.flatten(0, 1), 0.0)
            of_all, total_of_all = scaled_transposed(dz, None, 0.5)
        right = dz * factors[..., None]
        torch.testing.assert_close(of_each.view(2, 5, 6, 5).mT, right)
        torch.testing.assert_close(total, right.sum((0, 1, 2)))
        torch.testing.assert_close(of_all.view(2, 5, 6, 5).mT, dz * 0.5)
        torch.testing.assert_close(total_of_all, dz.sum((0, 1, 2)) * 0.5)
