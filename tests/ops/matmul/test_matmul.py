"""Matrix products: every portable form, every shape that torch.matmul takes, exactness, and clear errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from differentiation import assert_same, forward_and_backward
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.lab.check import Trial, run
from tilesmith.lab.comparison import compare
from tilesmith.lab.rounding_model import rounded
from tilesmith.ops import SPECS, configured
from tilesmith.ops.matmul.planning import choose
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.spec import CONTIGUOUS, load_file
from tilesmith.toolchain.compiler import Target, compile_kernel

matmul, reference = SPECS["matmul"].op, SPECS["matmul"].reference
FLOAT8 = torch.float8_e4m3fn
BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])

# Every portable form, with tiles so small that the interpreter computes several of them.
TILE = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP": 2}
TMA = {**TILE, "form": "tma"}
PERSISTENT = {**TMA, "programs_per_multiprocessor": 1}
STORED = {**PERSISTENT, "form": "bf16x3_stored_tma"}
FORMS: dict[str, dict[str, Any]] = {
    "outer": {**TILE, "form": "outer", "split_k": 3},
    "pointers": {**TILE, "form": "pointers"},
    "pointers, split-K": {**TILE, "form": "pointers", "split_k": 3},
    "tma": TMA,
    "tma, persistent": PERSISTENT,
    "tma, flattened, halves": {**PERSISTENT, "FLATTEN": True, "HALVES": True},
    "tma, split-K": {**PERSISTENT, "split_k": 3},
    "tma, specialised": {**PERSISTENT, "BLOCK_M": 128, "num_warps": 4, "WARP_SPECIALIZE": True},
    "bf16x3 stored, tma": STORED,
    "bf16x3 stored, tma, halves": {**STORED, "BLOCK_N": 32, "HALVES": True},
    "bf16x3 stored, tma, split-K": {**STORED, "split_k": 2},
    "bf16x3 stored, pointers": {**TILE, "form": "bf16x3_stored_pointers"},
    "bf16x3 in tile": {**TILE, "form": "bf16x3_in_tile", "split_k": 1},
    "bf16x3 in tile, split-K": {**TILE, "form": "bf16x3_in_tile", "split_k": 3},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def launched(*arguments: Any, target: str = "cuda:90", **named: Any) -> list[Any]:
    """Return the launches of a call on such a GPU."""

    def imagined(value: Any) -> Any:
        return value.to("meta") if isinstance(value, Tensor) else value

    with recorded_plans(target) as plans:
        matmul(*map(imagined, arguments), **{name: imagined(value) for name, value in named.items()})
    return [launch for plan in plans for launch in plan.launches]


class TestEveryForm:
    @pytest.mark.parametrize(
        ("form", "dtype"),
        [
            *((form, torch.float32) for form in FORMS),
            *((form, torch.bfloat16) for form in FORMS if "bf16x3" not in form),  # only float32 is split
        ],
        ids=str,
    )
    def test_forward_and_backward_match_the_reference(self, form: str, dtype: torch.dtype) -> None:
        a, b = torch.randn(24, 40, dtype=dtype), torch.randn(40, 32, dtype=dtype)
        with configured(**FORMS[form]):
            self.compare({"a": a, "b": b})

    @covering(form=list(FORMS), transposed=["a", "b"])
    def test_transposed_operands_match_the_reference(self, form: str, transposed: str) -> None:
        a = torch.randn(40, 24).t() if transposed == "a" else torch.randn(24, 40)
        b = torch.randn(32, 40).t() if transposed == "b" else torch.randn(40, 32)
        with configured(**FORMS[form]):
            self.compare({"a": a, "b": b})

    @EVERY_FORM
    def test_batches_match_the_reference(self, form: str) -> None:
        with configured(**FORMS[form]):
            self.compare({"a": torch.randn(3, 8, 20), "b": torch.randn(3, 20, 12)})

    @EVERY_FORM
    def test_bias_and_activation_match_the_reference(self, form: str) -> None:
        inputs = {"a": torch.randn(20, 24), "b": torch.randn(24, 36), "bias": torch.randn(36), "activation": "silu"}
        with configured(**FORMS[form]):
            self.compare(inputs)

    @EVERY_FORM
    def test_reads_nothing_beyond_the_edges(self, form: str) -> None:
        """The operands lie among NaN: reading one element too many makes the result NaN."""
        a = torch.full((40, 56), float("nan"))[:21, :36].copy_(torch.randn(21, 36))
        b = torch.full((56, 40), float("nan"))[:36, :20].copy_(torch.randn(36, 20))
        with configured(**FORMS[form]):
            torch.testing.assert_close(matmul(a, b), a @ b)

    def compare(self, inputs: dict[str, Any]) -> None:
        exact = {name: value.double() if isinstance(value, Tensor) else value for name, value in inputs.items()}
        right, draws = forward_and_backward(reference, exact), []
        for number in range(2):
            with rounded(number):
                draws.append(forward_and_backward(reference, inputs))
        for name, ours in forward_and_backward(matmul, inputs).items():
            found = compare(ours, right[name], [draw[name] for draw in draws])
            assert found.passed, f"{name}: {found}"

    def test_each_name_launches_its_own_kernels(self) -> None:
        """A form that does not take the operands gives way silently. Here every form takes them."""
        a, b = torch.randn(24, 40), torch.randn(40, 32)
        names = {}
        for form, fields in FORMS.items():
            with configured(**fields):
                launches = launched(a, b)
            names[form] = [launch.kernel.__name__ for launch in launches]
            product = next(launch for launch in launches if launch.kernel.__name__.startswith("matmul"))
            assert product.config.form == fields["form"]
            for field in ("FLATTEN", "HALVES", "WARP_SPECIALIZE"):
                if field in fields:
                    assert product.arguments[field] is fields[field]
        pointers, tma = "matmul_pointers_kernel", "matmul_descriptors_kernel"
        split, total = "split_bf16x3_kernel", "sum_partial_products_kernel"
        assert names == {
            "outer": [pointers],
            "pointers": [pointers],
            "pointers, split-K": [pointers, total],
            "tma": [tma],
            "tma, persistent": [tma],
            "tma, flattened, halves": [tma],
            "tma, split-K": [tma, total],
            "tma, specialised": [tma],
            "bf16x3 stored, tma": [split, tma],
            "bf16x3 stored, tma, halves": [split, tma],
            "bf16x3 stored, tma, split-K": [split, tma, total],
            "bf16x3 stored, pointers": [split, pointers],
            "bf16x3 in tile": [pointers],
            "bf16x3 in tile, split-K": [pointers, total],
        }

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_little_depth_needs_no_tensor_core(self, dtype: torch.dtype) -> None:
        """Two rows on a weight: the weight's gradient has a depth of 2, and each of its elements two roundings."""
        a = torch.randn(2, 40, dtype=dtype, requires_grad=True)
        b = torch.randn(70, 40, dtype=dtype).t().requires_grad_()
        (launch,) = launched(a.detach().t(), torch.randn(2, 70, dtype=dtype))
        assert launch.config.form == "outer"
        dy = torch.randn(2, 70, dtype=dtype)
        with ts.use("interpret"):
            (db,) = torch.autograd.grad(matmul(a, b), b, dy)
        right = a.detach().double().t() @ dy.double()
        size = a.detach().double().abs().t() @ dy.double().abs()
        assert ((db.double() - right).abs() <= torch.finfo(dtype).eps * size).all()

    def test_form_that_does_not_take_the_problem_gives_way(self) -> None:
        a, b = (
            torch.randn(12, 39),
            torch.randn(39, 32),
        )  # rows of 39 elements, which TMA cannot walk; few, so not copied
        for name in ("tma", "half", "exact_shared", "exact_registers", "no such form"):
            with configured(form=name):
                (launch, *_) = launched(a, b)
            assert launch.kernel.__name__ == "matmul_pointers_kernel"

    def test_every_form_but_the_hopper_ones_is_tested_here(self) -> None:
        only_on_hopper = {"half", "half_tiles", "exact_shared", "exact_registers"}
        assert {form.name for form in choose.FORMS} - only_on_hopper == {fields["form"] for fields in FORMS.values()}


@pytest.mark.parametrize(("split_k", "columns"), [(8, 7), (9, 7), (17, 7), (33, 150), (65, 20)])
def test_more_partial_sums_than_one_step_adds_match_exactly(split_k: int, columns: int) -> None:
    """Sums of whole numbers have no rounding error."""
    a, b = (torch.randint(-4, 5, shape).float() for shape in ((5, 16 * split_k), (16 * split_k, columns)))
    with configured(**{**TILE, "BLOCK_N": 64, "form": "bf16x3_in_tile", "split_k": split_k}):
        assert torch.equal(matmul(a, b), a @ b)
        assert launched(a, b)[-1].arguments["n_partials"] == split_k


class TestShapes:
    """As torch.matmul has them."""

    @pytest.mark.parametrize(
        ("a", "b"),
        [
            ((5,), (5,)), ((5,), (5, 4)), ((3, 5), (5,)), ((2, 3, 5), (5,)), ((5,), (2, 5, 4)),
            ((2, 3, 5), (5, 4)), ((3, 5), (2, 5, 4)), ((2, 1, 3, 5), (3, 5, 4)), ((1, 3, 5), (2, 5, 4)),
            ((2, 3, 5), (1, 5, 4)), ((2, 2, 3, 5), (2, 2, 5, 4)), ((2, 1, 2, 3, 5), (1, 3, 1, 5, 4)),
            ((1, 5), (5, 1)), ((2, 2, 2, 2, 3, 5), (2, 2, 2, 2, 5, 4)), ((2, 2, 2, 2, 3, 5), (5, 4)),
            ((2, 1, 2, 1, 3, 5), (1, 2, 1, 2, 5, 4)),
        ],
        ids=str,
    )  # fmt: skip
    def test_broadcast_forward_and_backward(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        inputs = {"a": torch.randn(a), "b": torch.randn(b)}
        assert_same(forward_and_backward(matmul, inputs), forward_and_backward(torch.matmul, inputs))

    @pytest.mark.parametrize(
        ("a", "b"),
        [((3, 0), (0, 4)), ((0, 5), (5, 4)), ((3, 5), (5, 0)), ((0, 3, 5), (0, 5, 4)), ((0, 3, 5), (5, 4)),
         ((3, 5), (0, 5, 4)), ((0,), (0,)), ((2, 3, 0), (2, 0, 4))],
        ids=str,
    )  # fmt: skip
    def test_empty(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        inputs = {"a": torch.randn(a), "b": torch.randn(b)}
        assert_same(forward_and_backward(matmul, inputs), forward_and_backward(torch.matmul, inputs))

    def test_zero_depth_returns_the_bias(self) -> None:
        inputs = {"a": torch.randn(3, 0), "b": torch.randn(0, 4), "bias": torch.randn(4), "activation": "gelu"}
        assert_same(forward_and_backward(matmul, inputs), forward_and_backward(reference, inputs))

    def test_batch_that_shares_b_is_one_product(self) -> None:
        (launch,) = launched(torch.randn(4, 6, 40), torch.randn(40, 32))
        assert launch.arguments["n_rows"] == 24
        assert launch.arguments["n_matrices"] == 1


def launches_of_training(batch: tuple[int, ...]) -> list[Any]:
    a = torch.randn(*batch, 40, device="meta", requires_grad=True)
    weight = torch.randn(32, 40, device="meta", requires_grad=True)
    with recorded_plans() as plans:
        y = matmul(a, weight.t())
        y.backward(torch.empty_like(y))
    assert weight.grad is not None
    return [launch for plan in plans for launch in plan.launches]


def test_the_gradient_of_a_transposed_weight_lies_in_memory_as_the_weight_does() -> None:
    """Otherwise PyTorch would copy it when it is accumulated."""
    x, weight = torch.randn(24, 40, requires_grad=True), torch.randn(32, 40, requires_grad=True)
    y = matmul(x, weight.t())
    (gradient,) = torch.autograd.grad(y, weight, torch.ones_like(y))
    assert gradient.is_contiguous()
    torch.testing.assert_close(gradient, torch.ones_like(y).t() @ x)
    products = [launch for launch in launches_of_training((24,)) if launch.kernel.__name__.startswith("matmul")]
    assert [launch.arguments["y_column_stride"] for launch in products] == [1, 1, 1]


class TestExactness:
    """Single precision is taken exactly unless PyTorch is told otherwise."""

    @pytest.mark.parametrize("form", ["bf16x3 stored, tma", "bf16x3 in tile"])
    def test_bf16x3_error_is_that_of_float32(self, form: str) -> None:
        a, b = torch.randn(16, 512), torch.randn(512, 16)
        right = a.double() @ b.double()
        with configured(**FORMS[form]):
            error = (matmul(a, b) - right).norm() / right.norm()
        assert error < 4e-7
        with configured(**FORMS["pointers"]):
            low = (matmul(a.bfloat16(), b.bfloat16()) - right).norm() / right.norm()
        assert low > 1e-3  # the error if two of the three parts were lost

    @pytest.mark.parametrize("form", ["bf16x3 stored, tma", "bf16x3 stored, pointers", "bf16x3 in tile"])
    @pytest.mark.parametrize(
        ("a", "b"),
        [
            (float("inf"), 1.0), (float("-inf"), -1.001), (float("inf"), 0.0), (float("inf"), float("-inf")),
            (float("nan"), 1.0), (3.4028234e38, 1.0), (3e38, -1.1), (-3.4e38, 1e20), (1e-40, 1.0), (1e-30, 1e-5),
        ],
    )  # fmt: skip
    def test_special_values_of_bf16x3_match_float32(self, form: str, a: float, b: float) -> None:
        left, right = torch.randn(4, 20), torch.randn(20, 8)
        left[0, 0], right[0] = a, b
        with configured(**FORMS[form]):
            torch.testing.assert_close(matmul(left, right), left @ right, equal_nan=True)

    def test_large_products_are_split_in_memory_on_hopper(self) -> None:
        a = torch.empty(4096, 4096, device="meta")
        assert [launch.kernel.__name__ for launch in launched(a, a)][:2] == [
            "split_bf16x3_kernel",
            "matmul_descriptors_kernel",
        ]

    def test_follows_pytorchs_switch_at_every_call(self) -> None:
        a = torch.empty(4096, 4096, device="meta")
        precisions = []
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            precisions.append([launch.arguments["BF16X3"] for launch in launched(a, a) if "BF16X3" in launch.arguments])
        torch.set_float32_matmul_precision("highest")
        assert precisions == [[True], [False], [True]]

    @pytest.mark.parametrize(("target", "bf16x3"), [("cuda:80", "here"), ("cuda:100", "here"), ("hip:gfx942", "")])
    @pytest.mark.parametrize("sizes", [(64, 64, 64), (128, 4096, 128)], ids=["small", "over many rows"])
    def test_few_tiles_are_split_in_each_tile_on_nvidia(
        self, target: str, bf16x3: str, sizes: tuple[int, int, int]
    ) -> None:
        rows, depth, columns = sizes
        a, b = torch.empty(rows, depth, device="meta"), torch.empty(depth, columns, device="meta")
        launch, *_ = launched(a, b, target=target)
        assert launch.arguments["BF16X3"] == bf16x3


class TestFloat8:
    def operands(self) -> tuple[Tensor, Tensor]:
        return torch.randn(24, 64).to(FLOAT8), torch.randn(48, 64).to(FLOAT8).t()

    @BOTH_WAYS
    @pytest.mark.parametrize("scales", ["none", "one", "rows and columns", "column of rows"])
    @pytest.mark.parametrize("out_dtype", [None, torch.float16, torch.float32], ids=str)
    def test_is_right(self, mode: Any, scales: str, out_dtype: torch.dtype | None) -> None:
        a, b = self.operands()
        scale_a, scale_b = {
            "none": (None, None),
            "one": (torch.tensor(0.5), torch.tensor([2.5])),
            "rows and columns": (torch.rand(24) + 0.5, torch.rand(48) + 0.5),
            "column of rows": (torch.rand(24, 1) + 0.5, torch.rand(1, 48) + 0.5),
        }[scales]
        with ts.use(mode):
            y = matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype)
        assert y.dtype == (out_dtype or torch.bfloat16)
        right = a.double() @ b.double()
        if scale_a is not None and scale_b is not None:
            right = right * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
        torch.testing.assert_close(y.double(), right, rtol=8e-3 if out_dtype is None else 1e-3, atol=2e-2)

    def test_float8_spec_finds_a_forgotten_scale(self) -> None:
        spec = load_file(Path(__file__).parents[3] / "benchmarks" / "float8_matmul.py")

        def forgets_a_scale(scale_b: Tensor, **arguments: Any) -> Any:
            return matmul(**arguments)

        passed = [
            [result.passed for result in run(Trial(one, one.case("tiny"), FLOAT8, CONTIGUOUS, "cpu"))]
            for one in (spec, replace(spec, op=forgets_a_scale))
        ]
        assert passed == [[True], [False]]

    def test_with_bias_and_activation(self) -> None:
        (a, b), bias = self.operands(), torch.randn(48)
        y = matmul(a, b, bias, "relu", torch.tensor(0.1), torch.tensor(0.2), torch.float32)
        torch.testing.assert_close(y, torch.relu(a.float() @ b.float() * 0.02 + bias))

    def test_has_no_gradient(self) -> None:
        a, b = self.operands()
        with pytest.raises(
            ValueError, match=r"^matmul: a requires a gradient, but products of float8_e4m3fn have none"
        ):
            matmul(a.requires_grad_(), b)
        with torch.no_grad():
            matmul(a, b)
        with pytest.raises(ValueError, match=r"^matmul: bias requires a gradient"):
            matmul(a.detach(), b, torch.randn(48, requires_grad=True))

    def test_compiles_for_hopper_to_its_tensor_cores(self) -> None:
        a = torch.empty(4096, 4096, device="meta").to(FLOAT8)
        (launch,) = launched(a, a.t(), scale_a=torch.ones(()), scale_b=torch.ones(()))
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0
        assert "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3" in binary.assembly["ptx"]


class TestFinish:
    @pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu"])
    @pytest.mark.parametrize("with_bias", [False, True])
    @pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)], ids=str)
    def test_gradients(self, activation: str | None, with_bias: bool, shape: tuple[int, ...]) -> None:
        inputs: dict[str, Any] = {"a": torch.randn(shape), "b": torch.randn(8, 12)}
        inputs |= {"bias": torch.randn(12)} if with_bias else {}
        inputs |= {"bias": inputs.get("bias"), "activation": activation}
        assert_same(forward_and_backward(matmul, inputs), forward_and_backward(reference, inputs))

    @pytest.mark.parametrize("activation", [None, "silu"])
    def test_gradient_of_the_bias_over_many_rows(self, activation: str | None) -> None:
        """Each program takes several groups of rows, and the last takes fewer than the others."""
        inputs = {"a": torch.randn(30, 8), "b": torch.randn(8, 20), "bias": torch.randn(20), "activation": activation}
        with configured(ROWS=4, COLUMNS=16, programs_per_multiprocessor=3):
            ours = forward_and_backward(matmul, inputs)
        assert_same(ours, forward_and_backward(reference, inputs))

    @pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
    def test_backward_recomputes_no_product(self, activation: str) -> None:
        a, b = (torch.empty(64, 64, device="meta", requires_grad=True) for _ in range(2))
        with recorded_plans() as plans:
            matmul(a, b, activation=activation).sum().backward()
        launches = [launch.kernel.__name__ for plan in plans for launch in plan.launches]
        assert sum(name.startswith("matmul") for name in launches) == 3

    def test_opcheck_accepts_the_kernels_that_keep_z(self) -> None:
        a, b, bias = (torch.randn(shape, requires_grad=True) for shape in ((5, 8), (8, 12), (12,)))
        arguments = (a, b, bias, "silu", None, None, torch.float32, False)
        torch.library.opcheck(torch.ops.tilesmith.matmul_forward_keeping_z, arguments)

    def test_compiles_to_one_graph_with_an_activation(self) -> None:
        inputs = {"a": torch.randn(6, 8), "b": torch.randn(8, 12), "bias": torch.randn(12), "activation": "gelu"}
        torch._dynamo.reset()
        compiled = torch.compile(matmul, fullgraph=True, backend="aot_eager")
        assert_same(forward_and_backward(compiled, inputs), forward_and_backward(reference, inputs))

    def test_without_gradient_z_is_not_kept(self) -> None:
        a, b = (torch.empty(64, 64, device="meta", requires_grad=True) for _ in range(2))
        with torch.no_grad():
            (launch,) = launched(a, b, activation="silu")
        assert len({operand.slot for operand in launch.operands()}) == 3

    @pytest.mark.parametrize("activation", ["relu", "silu"])
    def test_gradients_of_the_bare_torch_operator(self, activation: str) -> None:
        def bare(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
            arguments = (a, b, bias, activation, None, None, torch.float32, False)
            return torch.ops.tilesmith.matmul_forward(*arguments)  # type: ignore[no-any-return]  # a torch operator

        inputs = {"a": torch.randn(6, 8), "b": torch.randn(8, 12), "bias": torch.randn(12)}
        right = forward_and_backward(reference, {**inputs, "activation": activation})
        assert_same(forward_and_backward(bare, inputs), right)

    def test_a_result_in_single_precision(self) -> None:
        a, b, bias = torch.randn(6, 8).bfloat16(), torch.randn(8, 12).bfloat16(), torch.randn(12)
        inputs: dict[str, Any] = {"a": a, "b": b, "bias": bias, "activation": None, "scale_a": None, "scale_b": None}
        inputs["out_dtype"] = torch.float32
        ours = forward_and_backward(matmul, inputs)
        assert ours["output 0"].dtype == torch.float32
        assert ours["gradient of a"].dtype == torch.bfloat16
        torch.testing.assert_close(ours["output 0"], a.float() @ b.float() + bias)
        right = forward_and_backward(reference, {**inputs, "a": a.double(), "b": b.double(), "bias": bias.double()})
        torch.testing.assert_close(ours["gradient of b"].double(), right["gradient of b"], rtol=2e-2, atol=2e-2)

    @pytest.mark.parametrize("bias_dtype", [torch.float32, torch.bfloat16], ids=str)
    @BOTH_WAYS
    def test_bias_of_another_dtype(self, mode: Any, bias_dtype: torch.dtype) -> None:
        inputs = {"a": torch.randn(6, 8).bfloat16(), "b": torch.randn(8, 12).bfloat16()}
        inputs["bias"] = torch.randn(12).to(bias_dtype)
        with ts.use(mode):
            found = forward_and_backward(matmul, inputs)
        assert found["output 0"].dtype == torch.bfloat16
        assert found["gradient of bias"].dtype == bias_dtype

    @pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
    def test_nan_and_infinity_pass_through(self, activation: str) -> None:
        a = torch.tensor([[float("nan")], [float("inf")], [-1.0], [0.0]])
        inputs = {"a": a, "b": torch.ones(1, 3), "bias": None, "activation": activation}
        ours, right = matmul(**inputs), reference(**inputs)
        right[:2] = a[:2]  # PyTorch's own gelu of infinity is NaN on CPUs that have AVX-512
        torch.testing.assert_close(ours, right, equal_nan=True)


class TestBadInput:
    @BOTH_WAYS
    @pytest.mark.parametrize(
        ("arguments", "kind", "words"),
        [
            ({"b": torch.ones(4, 5)}, ValueError, r"a has 3 columns \(shape \(2, 3\)\), but b has 4 rows \(shape"),
            ({"b": torch.ones(4)}, ValueError, "a has 3 columns .* but b has 4 rows"),
            ({"a": torch.ones(())}, ValueError, r"a has 0 dimensions \(shape \(\)\), but must have at least 1"),
            ({"a": torch.ones(2, 2, 3), "b": torch.ones(3, 3, 5)}, ValueError, "b has shape .* does not broadcast"),
            ({"b": torch.ones(3, 5).half()}, TypeError, "b has dtype float16, but a has float32; they must be the"),
            ({"a": torch.ones(2, 3).to(FLOAT8)}, TypeError, "a has dtype float8_e4m3fn, but must be one of"),
            ({"bias": torch.ones(4)}, ValueError, "bias has 4 elements, but b has 5 columns"),
            ({"bias": torch.ones(5, 1)}, ValueError, r"bias has shape \(5, 1\), but must be a vector of 5"),
            ({"bias": torch.ones(5).long()}, TypeError, "bias has dtype int64"),
            ({"b": torch.ones(3), "bias": torch.ones(1)}, ValueError, "b has 1 dimensions"),
            ({"activation": "tanh"}, ValueError, "activation is 'tanh', but must be None or one of relu, silu, gelu"),
            ({"scale_a": torch.ones(())}, ValueError, "scale_a is given, but operands of float32 have no scales"),
            ({"out_dtype": torch.bfloat16}, TypeError, "out_dtype is bfloat16, but must be one of float32 for float32"),
        ],
    )  # fmt: skip
    def test_is_refused(self, mode: Any, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
        with ts.use(mode), pytest.raises(kind, match=f"^matmul: {words}"):
            matmul(**{"a": torch.ones(2, 3), "b": torch.ones(3, 5), **arguments})

    @BOTH_WAYS
    @pytest.mark.parametrize(
        ("arguments", "kind", "words"),
        [
            ({"a": torch.ones(1, 2, 3).to(FLOAT8)}, ValueError, r"a has shape \(1, 2, 3\), but must be a matrix"),
            ({"scale_a": torch.ones(3)}, ValueError, "scale_a has 3 elements, but must have 1 or 2"),
            ({"scale_b": torch.ones(4)}, ValueError, "scale_b has 4 elements, but must have 1 or 5"),
            ({"scale_b": 2.0}, TypeError, "scale_b is a float, but must be a tensor"),
            ({"out_dtype": FLOAT8}, TypeError, "out_dtype is float8_e4m3fn, but must be one of bfloat16, float16, "),
        ],
    )  # fmt: skip
    def test_of_float8_is_refused(self, mode: Any, arguments: dict[str, Any], kind: Any, words: str) -> None:
        with ts.use(mode), pytest.raises(kind, match=f"^matmul: {words}"):
            matmul(**{"a": torch.ones(2, 3).to(FLOAT8), "b": torch.ones(3, 5).to(FLOAT8), **arguments})


def test_double_precision_is_left_to_pytorch_on_a_gpu() -> None:
    assert launched(torch.randn(8, 8).double(), torch.randn(8, 8).double()) == []
