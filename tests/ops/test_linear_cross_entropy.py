# mypy: disable-error-code="no-untyped-call"
# PyTorch does not type Tensor.backward.
"""linear_cross_entropy: chunks, memory, the fused kernel, repeated backwards and layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from differentiation import assert_same, leaves_of
from losses import cotangent_of, results_of
from on_hopper import names_launched
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tilesmith as ts
from covering import covering
from tilesmith.lab.check import Trial, run
from tilesmith.ops import SPECS
from tilesmith.ops.linear_cross_entropy.chunks import (
    class_slices,
    compute_backward,
    compute_forward,
    rows_per_chunk,
)
from tilesmith.ops.runtime.dispatch import Mode
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.spec import CONTIGUOUS, Case, Inputs
from tilesmith.toolchain.compiler import Target, compile_kernel
from tilesmith.toolchain.interpreter import Access, Observer, interpreting

SPEC = SPECS["linear_cross_entropy"]
linear_cross_entropy = SPEC.op
BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
NAN = float("nan")
ROWS, FEATURES, CLASSES = 300, 5, 24  # two chunks of 128 rows and a last one of 44


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


@pytest.fixture
def small_chunks() -> Iterator[None]:
    with ts.ops.configured(chunk_mebibytes=0):
        yield


def made(bias: bool = True, dtype: torch.dtype = torch.float32) -> Inputs:
    target = torch.randint(CLASSES, (ROWS,))
    target[130:180] = -100
    return {
        "hidden": torch.randn(ROWS, FEATURES, dtype=dtype),
        "weight": torch.randn(CLASSES, FEATURES, dtype=dtype),
        "target": target,
        "bias": torch.randn(CLASSES, dtype=dtype) if bias else None,
    }


def compare(**inputs: Any) -> dict[str, Tensor]:
    found = results_of(linear_cross_entropy, inputs)
    torch.testing.assert_close(found, results_of(SPEC.reference, inputs), equal_nan=True)
    return found


class TestChunks:
    @pytest.mark.parametrize(
        ("rows", "row_bytes", "expected"),
        [
            (8192, 2 * 128256, 2048),  # 2093 rows would fit, 2048 are whole tiles
            (8192, 4 * 128256, 1024),
            (16384, 2 * 32000, 8192),
            (8400, 2 * 32000, 4224),  # two about equal chunks instead of a full one and a small one
            (8000, 2 * 32000, 8000),
            (300, 2**30, 128),
            (1, 2**30, 1),
            (0, 2**30, 1),
        ],
    )
    def test_chunks_are_as_large_as_memory_allows(self, rows: int, row_bytes: int, expected: int) -> None:
        assert rows_per_chunk(rows, row_bytes) == expected

    def test_chunk_memory_can_be_configured(self) -> None:
        with ts.ops.configured(chunk_mebibytes=256):
            assert rows_per_chunk(8192, 2 * 128256) == 1024

    @REDUCTIONS
    @pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.usefixtures("small_chunks")
    def test_several_chunks_match_reference(self, reduction: str, label_smoothing: float, bias: bool) -> None:
        compare(**made(bias), label_smoothing=label_smoothing, reduction=reduction)

    @REDUCTIONS
    def test_sums_over_some_classes_at_a_time_match_reference(
        self, reduction: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(rows_per_chunk.__globals__, "SUMMED_CLASSES", 7)  # three sums of 7 classes and one of 3
        compare(**made(), reduction=reduction)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @REDUCTIONS
    @pytest.mark.usefixtures("small_chunks")
    def test_error_of_several_chunks_is_within_the_rule(self, dtype: torch.dtype, reduction: str) -> None:
        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> Inputs:
            return {**made(dtype=dtype), "reduction": reduction}

        spec = replace(SPEC, make_inputs=make_inputs)
        results = list(run(Trial(spec, SPEC.case("tiny"), dtype, CONTIGUOUS, "cpu")))
        assert [result.what for result in results] == [
            "forward",
            *(f"gradient {name}" for name in ("hidden", "weight", "bias")),
        ]
        assert not [result for result in results if not result.passed]

    @pytest.mark.usefixtures("small_chunks")
    def test_hidden_of_any_shape_matches_reference(self) -> None:
        inputs = made()
        for shape in ((20, 15), (2, 3, 50)):
            shaped = {
                **inputs,
                "hidden": inputs["hidden"].view(*shape, FEATURES),
                "target": inputs["target"].view(shape),
            }
            compare(**shaped)
            compare(**shaped, reduction="none")


class Watching(TorchDispatchMode):
    """Records which operators ran, and the largest tensor among their inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append(func.name())
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.untyped_storage().nbytes() // value.itemsize)
        return result

    @property
    def products(self) -> int:
        return sum(call.startswith(("aten::mm", "aten::addmm")) for call in self.calls)


class Stores(Observer):
    """Records which kernels wrote to memory."""

    def __init__(self) -> None:
        self.of_kernels: set[str] = set()

    def store(self, access: Access) -> None:
        self.of_kernels.add(access.kernel)


@pytest.mark.usefixtures("small_chunks")
class TestMemory:
    """The tensors that PyTorch's operators and our kernels read and write."""

    CHUNKS = 3

    @REDUCTIONS
    def test_never_holds_all_logits(self, reduction: str) -> None:
        inputs = made()
        wanted = (reduction != "none",) * 3
        with Watching() as watching:
            _, kept, *_ = compute_forward(*inputs.values(), -100, 0.0, reduction, 0.0, 1.0, *wanted)
            if reduction == "none":
                compute_backward(torch.ones(ROWS), *inputs.values(), kept, -100, 0.0, 0.0, 1.0, True, True, True)
        assert watching.products == self.CHUNKS * (3 if reduction != "none" else 4)
        row_length = 32  # 24 logits padded to 128 bytes
        assert watching.largest == 128 * row_length < ROWS * CLASSES

    def test_without_gradients_only_one_gemm_runs(self) -> None:
        inputs = made()
        with Watching() as watching:
            compute_forward(*inputs.values(), -100, 0.0, "mean", 0.0, 1.0, False, False, False)
        assert watching.products == self.CHUNKS

    @pytest.mark.parametrize("wanted", ["hidden", "weight", "bias"])
    @REDUCTIONS
    def test_only_wanted_gradients_are_computed(self, wanted: str, reduction: str) -> None:
        inputs = made()
        right = compare(**inputs, reduction=reduction)[f"gradient of {wanted}"]
        leaf = inputs[wanted].requires_grad_()
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.numel()) or one, lambda one: one):  # type: ignore[func-returns-value]
            loss = linear_cross_entropy(**inputs, reduction=reduction)
        loss.backward(cotangent_of(loss))
        torch.testing.assert_close(leaf.grad, right)
        arguments = sum(one.numel() for one in inputs.values())
        computed = leaf.numel() + 1 if reduction != "none" else 2 * ROWS
        assert sum(kept) == arguments + computed


FORMS = {
    "one block": {"BLOCK_SIZE": 1024, "GROUP": 1},
    "one block in groups": {"BLOCK_SIZE": 1024, "GROUP": 8},
    "a loop and a block that is kept": {"BLOCK_SIZE": 128, "GROUP": 2},
    "several rows at once": {"BLOCK_SIZE": 128, "GROUP": 2, "ROWS": 4},
}


class TestLossAndGradientKernel:
    """One kernel computes the losses of a chunk and overwrites its logits with their gradient."""

    def test_opcheck_accepts_loss_and_gradient(self) -> None:
        logits, target, dloss = torch.randn(5, 24), torch.tensor([0, 23, -100, 7, 7]), torch.tensor(0.25)
        with ts.use("interpret"):
            torch.library.opcheck(
                torch.ops.tilesmith.cross_entropy_loss_and_gradient, (logits, target, dloss, -100, 0.1, 0.0)
            )

    @covering(times=2, form=list(FORMS), classes=[640, 603], label_smoothing=[0.0, 0.1])  # whole vectors, and a rest
    def test_every_tile_shape_matches_reference(self, form: str, classes: int, label_smoothing: float) -> None:
        rows = 13
        target = torch.linspace(0, classes - 1, rows).long()  # in every block, and in the rest
        target[4:9:2] = -100
        inputs = {"hidden": 3 * torch.randn(rows, FEATURES), "weight": torch.randn(classes, FEATURES), "target": target}
        with ts.ops.configured(**FORMS[form]):
            compare(**inputs, label_smoothing=label_smoothing)

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("classes", [640, 603])
    def test_logits_of_minus_infinity_match_reference(self, form: str, classes: int) -> None:
        bias = torch.randn(classes)
        bias[:300] = bias[-2:] = float("-inf")  # whole blocks, and a part of the rest
        target = torch.tensor([301, 400, 599, -100, 450])
        leaves = {"hidden": torch.randn(5, FEATURES), "weight": torch.randn(classes, FEATURES), "bias": bias}
        ours, right = leaves_of(leaves), leaves_of(leaves)
        with ts.ops.configured(**FORMS[form]):
            loss = linear_cross_entropy(**ours, target=target)
        expected = SPEC.reference(**right, target=target)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()
        for name in leaves:
            torch.testing.assert_close(ours[name].grad, right[name].grad)

    @pytest.mark.parametrize("form", FORMS)
    def test_bad_target_makes_only_its_row_nan(self, form: str) -> None:
        hidden = torch.randn(4, FEATURES, requires_grad=True)
        with ts.ops.configured(**FORMS[form]):
            linear_cross_entropy(hidden, torch.randn(603, FEATURES), torch.tensor([1, 603, -1, 602])).backward()
        assert hidden.grad is not None
        assert hidden.grad.isnan().all(dim=1).tolist() == [False, True, True, False]

    def test_ignored_rows_are_not_read(self) -> None:
        hidden = torch.randn(3, FEATURES)
        hidden[1] = NAN
        leaf, weight = hidden.requires_grad_(), torch.randn(603, FEATURES, requires_grad=True)
        loss = linear_cross_entropy(leaf, weight, torch.tensor([5, -100, 602]))
        loss.backward()
        assert leaf.grad is not None
        assert not loss.isnan()
        assert not leaf.grad.isnan().any()
        assert not leaf.grad[1].any()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
    def test_only_the_fused_kernel_writes_a_chunk(self, dtype: torch.dtype) -> None:
        stores = Stores()
        inputs = leaves_of(made(dtype=dtype))
        with interpreting(stores):
            linear_cross_entropy(**inputs)
        assert stores.of_kernels == {"loss_and_gradient_kernel"}

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_forward_kernel_runs_where_no_gradient_is_computed(self, reduction: str) -> None:
        stores = Stores()
        inputs = made() if reduction == "mean" else leaves_of(made())
        with interpreting(stores):
            linear_cross_entropy(**inputs, reduction=reduction)
        assert stores.of_kernels == {"cross_entropy_forward_kernel"}

    def test_forward_refuses_gradients_for_reduction_none(self) -> None:
        with pytest.raises(AssertionError, match="only the backward knows"):
            compute_forward(*made().values(), -100, 0.0, "none", 0.0, 1.0, True, False, False)


class TestBackward:
    """The forward keeps the gradients. The backward scales them in place only where nobody else can see them."""

    def step(self, inputs: Inputs, **options: Any) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the loss, the leaves, and the kept gradients."""
        leaves = leaves_of(inputs)
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):  # type: ignore[func-returns-value]
            loss = linear_cross_entropy(**leaves, **options)
        return loss, [leaves[name] for name in ("hidden", "weight", "bias")], kept[-3:]

    def test_first_backward_copies_nothing(self) -> None:
        loss, leaves, kept = self.step(made())
        memory = [one.data_ptr() for one in kept]
        kept.clear()
        loss.backward(torch.tensor(3.0))
        assert [leaf.grad.data_ptr() for leaf in leaves if leaf.grad is not None] == memory

    @pytest.mark.parametrize(
        ("reduction", "dtype", "factor", "untouched"),
        [
            ("mean", torch.bfloat16, 1.0, True),
            ("mean", torch.float32, 1.0, True),
            ("sum", torch.float16, 1.0, True),
            ("mean", torch.float16, 1.0, False),  # the backward divides by the number of rows
            ("mean", torch.float32, 2.0, False),
            ("sum", torch.bfloat16, 0.5, False),
        ],
    )
    def test_backward_with_a_factor_of_one_writes_nothing(
        self, reduction: str, dtype: torch.dtype, factor: float, untouched: bool
    ) -> None:
        loss, _, kept = self.step(made(dtype=dtype), reduction=reduction)
        kept.clear()
        stores = Stores()
        with interpreting(stores):
            loss.backward(torch.tensor(factor))
        assert stores.of_kernels == (set() if untouched else {"scale_kernel"})

    def test_repeated_backwards_give_the_same(self) -> None:
        inputs = made()
        loss, leaves, kept = self.step(inputs)
        before = [one.clone() for one in kept]
        factors = (1.0, -2.5, 0.0, 1.0)
        found = [torch.autograd.grad(loss, leaves, torch.tensor(one), retain_graph=True) for one in factors]
        for factor, gradients in zip(factors, found, strict=True):
            torch.testing.assert_close(gradients, [one * factor for one in found[0]])
        torch.testing.assert_close(kept, before, rtol=0, atol=0)
        last = torch.autograd.grad(loss, leaves, torch.tensor(-2.5))
        torch.testing.assert_close(last, found[1], rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, leaves)

    def test_backward_of_the_torch_operator_keeps_its_outputs(self) -> None:
        leaves = leaves_of(made())
        loss, *kept = torch.ops.tilesmith.linear_cross_entropy_forward(
            *leaves.values(), -100, 0.0, "mean", 0.0, 1.0, True, True, True
        )
        before = [one.clone() for one in kept]
        loss.backward(torch.tensor(3.0))
        torch.testing.assert_close(kept, before, rtol=0, atol=0)

    def test_backward_under_a_dispatch_mode_overwrites_nothing(self) -> None:
        loss, _, kept = self.step(made())
        before = [one.clone() for one in kept]
        with Watching():
            loss.backward(torch.tensor(3.0))
        torch.testing.assert_close(kept, before, rtol=0, atol=0)

    def test_second_derivative_is_refused(self) -> None:
        """The gradient of a plain loss has no factor for autograd to follow, but it depends on the arguments."""
        leaves = leaves_of(made())
        loss = linear_cross_entropy(**leaves)
        (gradient,) = torch.autograd.grad(loss, leaves["hidden"], create_graph=True)
        with pytest.raises(RuntimeError, match="twice"):
            torch.autograd.grad(gradient.sum(), leaves["weight"])

    @pytest.mark.parametrize("factor", [1.0, 1000.0])
    def test_small_gradients_survive_in_float16(self, factor: float) -> None:
        """A probability of 1/512, divided by 512 rows, has three bits in float16."""
        rows, classes, features = 512, 512, 8
        inputs = {
            "hidden": torch.randn(rows, features).half() * 0.01,
            "weight": torch.randn(classes, features).half(),
            "target": torch.randint(classes, (rows,)),
        }
        leaves = {name: value.requires_grad_(value.is_floating_point()) for name, value in inputs.items()}
        exact = {
            name: value.detach().double() if value.is_floating_point() else value for name, value in inputs.items()
        }
        exact = {name: value.requires_grad_(value.is_floating_point()) for name, value in exact.items()}
        linear_cross_entropy(**leaves).backward(torch.tensor(factor))
        SPEC.reference(**exact).backward(torch.tensor(factor, dtype=torch.float64))
        ours, right = leaves["weight"].grad, exact["weight"].grad
        assert ours is not None
        assert right is not None
        assert (ours.double() - right).norm() < (2e-2 if factor == 1 else 1e-3) * right.norm()


class TestLayouts:
    @REDUCTIONS
    def test_any_strides_match_reference(self, reduction: str) -> None:
        inputs = made()
        for hidden, weight in (
            (torch.randn(FEATURES, ROWS).t(), torch.randn(FEATURES, CLASSES).t()),
            (torch.randn(1, FEATURES).expand(ROWS, FEATURES), torch.randn(CLASSES, 1).expand(CLASSES, FEATURES)),
            (torch.randn(ROWS, 2 * FEATURES)[:, ::2], torch.randn(CLASSES, 3 * FEATURES)[:, ::3]),
            (torch.randn(2 * ROWS, FEATURES + 1)[::2, 1:], torch.randn(CLASSES, FEATURES + 3)[:, 1:-2]),
        ):
            leaves = {"hidden": hidden.detach().requires_grad_(), "weight": weight.detach().requires_grad_()}
            copies = leaves_of({"hidden": hidden, "weight": weight})
            rest = {"target": inputs["target"], "bias": inputs["bias"], "reduction": reduction}
            loss, right = linear_cross_entropy(**leaves, **rest), SPEC.reference(**copies, **rest)
            torch.testing.assert_close(loss, right)
            cotangent = torch.randn(loss.shape)
            torch.testing.assert_close(
                torch.autograd.grad(loss, list(leaves.values()), cotangent),
                torch.autograd.grad(right, list(copies.values()), cotangent),
                rtol=1e-4,  # equal rows add up their rounding
                atol=1e-4,
            )

    @pytest.mark.parametrize("shape", [(0,), (3, 0)], ids=str)
    @REDUCTIONS
    def test_no_rows_match_reference(self, shape: tuple[int, ...], reduction: str) -> None:
        found = compare(
            hidden=torch.randn(*shape, 4),
            weight=torch.randn(7, 4),
            target=torch.zeros(shape).long(),
            bias=torch.randn(7),
            reduction=reduction,
        )
        torch.testing.assert_close(found["gradient of weight"], torch.zeros(7, 4), rtol=0, atol=0)

    def test_all_rows_ignored_give_nan_loss_and_zero_gradients(self) -> None:
        inputs = {"hidden": torch.randn(3, 4), "weight": torch.randn(7, 4), "target": torch.full((3,), -100)}
        found = results_of(linear_cross_entropy, inputs)
        assert found["loss"].isnan()
        assert not found["gradient of hidden"].any()
        assert not found["gradient of weight"].any()


class TestBadInput:
    @BOTH_WAYS
    @pytest.mark.parametrize(
        ("arguments", "kind", "words"),
        [
            ({"weight": torch.ones(7)}, ValueError, r"weight has shape \(7,\), but must have one row for each class"),
            ({"weight": torch.ones(7, 5)}, ValueError, r"weight has shape \(7, 5\), but .* and 4 columns"),
            ({"hidden": torch.tensor(1.0)}, ValueError, "hidden has 0 dimensions"),
            ({"bias": torch.ones(6)}, ValueError, r"bias has shape \(6,\), but must be a vector of 7 elements"),
            ({"bias": torch.ones(1, 7)}, ValueError, r"bias has shape \(1, 7\), but must be a vector of 7 elements"),
            ({"bias": torch.ones(7).long()}, TypeError, "bias has dtype int64, but must be one of"),
            ({"bias": torch.ones(7).half()}, TypeError, "bias has dtype float16, but hidden has float32"),
            ({"weight": torch.ones(7, 4).bfloat16()}, TypeError, "weight has dtype bfloat16, but hidden has float32"),
            ({"target": torch.zeros(4).long()}, ValueError, r"target has shape \(4,\), but hidden has \(3,\)"),
            ({"target": torch.zeros(3)}, TypeError, "target has dtype float32, but must hold classes as int64"),
            ({"target": torch.zeros(3, device="meta").long()}, ValueError, "target is on meta, but hidden is on cpu"),
            ({"bias": torch.ones(7, device="meta")}, ValueError, "bias is on meta, but hidden is on cpu"),
            ({"label_smoothing": 2.0}, ValueError, "label_smoothing is 2.0, but must be at most 1"),
            ({"reduction": "all"}, ValueError, "reduction is 'all', but must be one of mean, sum, none"),
            ({"ignore_index": "pad"}, TypeError, "ignore_index is a str, but must be an integer"),
        ],
    )
    def test_bad_input_raises_error_that_names_it(
        self, mode: Any, arguments: Inputs, kind: type[Exception], words: str
    ) -> None:
        inputs = {"hidden": torch.ones(3, 4), "weight": torch.ones(7, 4), "target": torch.zeros(3).long(), **arguments}
        with ts.use(mode), pytest.raises(kind, match=f"^linear_cross_entropy: {words}"):
            linear_cross_entropy(**inputs)

    def test_bad_target_makes_its_loss_nan(self) -> None:
        for wrong in (-1, 7, 2**62):
            losses = linear_cross_entropy(
                torch.randn(3, 4), torch.randn(7, 4), torch.tensor([1, wrong, 2]), reduction="none"
            )
            assert losses.isnan().tolist() == [False, True, False]

    @BOTH_WAYS
    def test_debug_rejects_bad_targets(self, mode: Any) -> None:
        words = r"^linear_cross_entropy: target is 7 at \[1\], but must be a class from 0 to 6"
        with ts.use(mode), ts.debug(), pytest.raises(ValueError, match=words):
            linear_cross_entropy(torch.randn(3, 4), torch.randn(7, 4), torch.tensor([1, 7, 2]))


def test_autocast_multiplies_in_its_dtype_and_returns_float32_loss() -> None:
    inputs = made()
    leaves = leaves_of(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(**leaves)
    loss.backward()
    assert loss.dtype == leaves["weight"].grad.dtype == torch.float32
    halved = {name: value.bfloat16() if value.is_floating_point() else value for name, value in inputs.items()}
    torch.testing.assert_close(loss.detach(), linear_cross_entropy(**halved), rtol=0, atol=0)


def test_compiled_equals_eager() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    for reduction in ("mean", "none"):
        inputs = {**made(), "reduction": reduction}
        assert_same(results_of(compiled, inputs), results_of(linear_cross_entropy, inputs))


@pytest.mark.gpu
def test_peak_memory_on_a_gpu_is_gradients_and_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = names_launched(monkeypatch)
    rows, features, classes = 4096, 1024, 50000
    hidden = torch.randn(rows, features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(classes, (rows,), device="cuda")
    with ts.use("triton"), ts.ops.configured(chunk_mebibytes=64):
        for _ in range(2):
            hidden.grad = weight.grad = None
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            linear_cross_entropy(hidden, weight, target).backward()
    taken = torch.cuda.max_memory_allocated() - before
    assert taken < hidden.nbytes + weight.nbytes + (64 << 20) + (4 << 20)
    assert "loss_and_gradient_kernel" in launched


@pytest.mark.parametrize(("classes", "most"), [(50257, 50257), (50257, 16384), (4500, 4500), (24, 24), (5, 5)])
def test_products_over_odd_vocabularies_have_whole_multiples_of_eight(classes: int, most: int) -> None:
    """The few classes that are left over come first, so that only their small sum is rounded in between."""
    slices = class_slices(classes, most)
    assert sorted(one for some in slices for one in range(classes)[some]) == list(range(classes))
    lengths = [len(range(classes)[some]) for some in slices]
    if classes % 8:
        assert lengths.pop(0) == classes % 8
    assert all(0 < length <= most and length % 8 == 0 for length in lengths)


class TestCappedAndScaledLogits:
    @BOTH_WAYS
    @REDUCTIONS
    @pytest.mark.parametrize("classes", [CLASSES, 4500], ids=["one block", "past a block"])
    @pytest.mark.parametrize("options", [{"softcap": 2.0}, {"scale": 0.4}, {"softcap": 3.0, "scale": -1.7}], ids=str)
    def test_loss_and_gradients_as_reference(
        self, options: dict[str, float], classes: int, reduction: str, mode: Mode
    ) -> None:
        rows = ROWS if classes == CLASSES else 5
        inputs: dict[str, Any] = {
            "hidden": torch.randn(rows, FEATURES), "weight": torch.randn(classes, FEATURES),
            "target": torch.randint(classes, (rows,)), "bias": torch.randn(classes),
        }  # fmt: skip
        inputs["target"][:3] = -100
        smoothing = 0.1 if classes == CLASSES else 0.0

        def found(function: Any) -> list[Tensor]:
            leaves = leaves_of(inputs)
            loss = function(**leaves, reduction=reduction, label_smoothing=smoothing, **options)
            weights = torch.arange(loss.numel()).mul(1.3).cos().view(loss.shape)
            wanted = [leaves[name] for name in ("hidden", "weight", "bias")]
            return [loss.detach(), *torch.autograd.grad(loss, wanted, weights)]

        with ts.use(mode):
            ours = found(linear_cross_entropy)
        torch.testing.assert_close(ours, found(SPEC.reference), rtol=1e-4, atol=1e-5)

    def test_half_precision_caps_by_a_shorter_tanh(self) -> None:
        torch.manual_seed(0)
        leaves = [torch.randn(9, 16, dtype=torch.bfloat16), torch.randn(70, 16, dtype=torch.bfloat16)]
        target = torch.randint(70, (9,))

        def found(function: Any, dtype: torch.dtype) -> list[Tensor]:
            hidden, weight = (one.to(dtype).requires_grad_() for one in leaves)
            loss = function(hidden, weight, target, softcap=2.0)
            return [one.detach().double() for one in (loss, *torch.autograd.grad(loss, (hidden, weight)))]

        with ts.use("interpret"):
            ours = found(linear_cross_entropy, torch.bfloat16)
        for one, right in zip(ours, found(SPEC.reference, torch.float64), strict=True):
            assert (one - right).norm() <= 0.02 * right.norm()

    @pytest.mark.parametrize(
        ("target", "dtype"),
        [
            ("cuda:90", torch.bfloat16), ("hip:gfx942", torch.float32),
            pytest.param("cuda:90", torch.float32, marks=pytest.mark.slow),
            pytest.param("hip:gfx942", torch.bfloat16, marks=pytest.mark.slow),
        ],
        ids=str,
    )  # fmt: skip
    def test_capped_loss_compiles_without_spilling(self, target: str, dtype: torch.dtype) -> None:
        hidden = torch.empty(256, 64, dtype=dtype, device="meta", requires_grad=True)
        weight = torch.empty(256_000, 64, dtype=dtype, device="meta")
        with recorded_plans(target) as plans:
            linear_cross_entropy(hidden, weight, torch.empty(256, dtype=torch.int64, device="meta"), softcap=30.0)
        launches = [launch for plan in plans for launch in plan.launches if "SOFTCAP" in launch.arguments]
        assert launches, "the loss has another kernel"
        for launch in launches[:1]:
            assert launch.arguments["SOFTCAP"] == 30
            binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
            assert not binary.spill_bytes

    @pytest.mark.parametrize(("option", "value"), [("softcap", -1.0), ("scale", NAN)])
    def test_rejects_numbers_that_make_no_sense(self, option: str, value: float) -> None:
        with pytest.raises(ValueError, match=f"linear_cross_entropy: {option} is"):
            linear_cross_entropy(
                torch.ones(2, 3), torch.ones(4, 3), torch.zeros(2, dtype=torch.int64), **{option: value}
            )
