"""Correct kernels pass the check; each kind of mistake fails it with a helpful message."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.lab import Result, check
from tilesmith.lab.check import trials
from tilesmith.spec import CONTIGUOUS, LAYOUTS, Case, Cost, Layout, Spec, SpecError, Work, load_file

KERNELS = Path(__file__).parents[1] / "kernels"
MULTIPLY = KERNELS / "multiply.py"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), start=1) if text in line)


def broken_copy(folder: Path, right: str, wrong: str) -> Path:
    source = MULTIPLY.read_text()
    assert source.count(right) == 1, f"{right!r} must be one place in the kernel"
    copy = folder / "broken.py"
    copy.write_text(source.replace(right, wrong))
    return copy


def checked(
    spec: Spec, dtype: torch.dtype = torch.float32, layout: Layout = CONTIGUOUS, device: str = "cpu"
) -> list[Result]:
    return list(check(spec, cases=[spec.cases[-1]], dtypes=[dtype], layouts=[layout], device=device))


def small(spec: Spec) -> Spec:
    return replace(spec, cases=[spec.case("odd")])


def failure(results: list[Result], what: str) -> Result:
    """Return the only failure."""
    failures = [result for result in results if not result.passed]
    assert [one.what for one in failures] == [what], failures
    return failures[0]


def simple(op: Callable[..., Any], reference: Callable[..., Any] = lambda x: x * 2, **fields: Any) -> Spec:
    """Return a spec of plain PyTorch functions on a small vector x."""
    made = {
        "name": "simple",
        "cases": [Case("five", elements=5)],
        "make_inputs": lambda case, dtype, device: {"x": torch.randn(case.elements, dtype=dtype, device=device)},
        "dtypes": [torch.float32],
        "layouts": [CONTIGUOUS],
        "kernels": False,
    }
    return Spec(op=op, reference=reference, **{**made, **fields})


# As people write them, and PyTorch's own.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "silu": (lambda x: x * x.sigmoid(), torch.nn.functional.silu),
    "tanh-gelu": (
        lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "mish": (lambda x: x * torch.tanh(torch.nn.functional.softplus(x)), torch.nn.functional.mish),
}


class TestRightKernels:
    @pytest.mark.parametrize("file", ["multiply.py", "largest_of_rows.py"])
    def test_pass_in_every_dtype_and_layout(self, file: str) -> None:
        results = list(check(small(load_file(KERNELS / file)), device="cpu"))
        assert [result for result in results if not result.passed] == []
        assert {result.dtype for result in results} == {"float32", "float16", "bfloat16"}
        assert {result.layout for result in results} == {layout.name for layout in LAYOUTS}

    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_of_activations_may_lose_the_digits_that_their_formula_loses(self, name: str) -> None:
        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            return {"x": 4 * torch.randn(case.elements, dtype=dtype)}

        formula, reference = ACTIVATIONS[name]
        spec = simple(formula, reference, cases=[Case("many", elements=100_000)], make_inputs=make_inputs)
        assert [result for result in checked(spec) if not result.passed] == []
        wrong = replace(spec, op=lambda x: formula(x * (1 + 2**-20)))
        assert not all(result.passed for result in checked(wrong))

    def test_compare_output_and_each_gradient(self) -> None:
        results = checked(small(load_file(MULTIPLY)))
        assert [result.what for result in results] == ["forward", "gradient x", "gradient y"]

    def test_compare_each_of_several_outputs(self) -> None:
        results = checked(load_file(KERNELS / "largest_of_rows.py"))
        assert [result.what for result in results] == ["forward 0", "forward 1"] * 2  # two configurations

    @pytest.mark.gpu
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_pass_on_a_gpu(self, dtype: torch.dtype) -> None:
        for file in ("multiply.py", "largest_of_rows.py"):
            results = checked(load_file(KERNELS / file), dtype, device="cuda")
            assert [result for result in results if not result.passed] == []

    def test_take_lists_of_tensors(self) -> None:
        def products(xs: list[Tensor], w: Tensor) -> list[Tensor]:
            return [x @ w for x in xs]

        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Any]:
            return {"xs": [torch.randn(rows, 4, dtype=dtype) for rows in (2, 3)], "w": torch.randn(4, 5, dtype=dtype)}

        spec = simple(products, products, make_inputs=make_inputs, dtypes=[torch.float16], differentiable=False)
        results = checked(spec, torch.float16)
        assert [(result.what, result.passed) for result in results] == [("forward 0", True), ("forward 1", True)]
        wrong = replace(spec, op=lambda xs, w: [x @ w + 0.02 for x in xs])
        assert not any(result.passed for result in checked(wrong, torch.float16))

    def test_keep_the_callers_random_state(self) -> None:
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        checked(small(load_file(MULTIPLY)))
        assert torch.equal(torch.rand(3), expected)

    def test_restore_determinism_settings(self) -> None:
        checked(small(load_file(MULTIPLY)))
        assert not torch.are_deterministic_algorithms_enabled()

    def test_may_change_inputs_if_the_name_ends_with_underscore(self) -> None:
        in_place = simple(lambda x: x.mul_(2), name="double_", differentiable=False)
        assert all(result.passed for result in checked(in_place))
        assert not all(result.passed for result in checked(replace(in_place, name="double")))


# Text to replace in the kernel, its replacement, the comparison that fails, and the message.
# {line} is the number of the line with the text after the |.
MISTAKES = {
    "zeros": (
        "    z = x * y\n", "    z = x * y * 0\n", "forward",
        r"element \[\d+, \d+\] is -?0, but must be .*; stored by program \(\d, 0, 0\) of multiply_kernel, "
        r"broken.py:{line}; 129 of 129 elements are wrong|tl.store(z_ptr",
    ),
    "half precision": (
        "    z = x * y\n", "    z = (x * y).to(tl.float16).to(tl.float32)\n", "forward",
        r"element .* \(off by .*, allowed .*\); stored by .*broken.py:{line}; \d+ of 129 elements|tl.store(z_ptr",
    ),
    "one wrong element at the end": (
        "    z = x * y\n", "    z = tl.where(offsets == n_elements - 1, 0.0, x * y)\n", "forward",
        r"element \[2, 42\] is 0, but must be .*; stored by program \(2, 0, 0\) of multiply_kernel, broken.py:{line}$"
        r"|tl.store(z_ptr",
    ),
    "one wrong program": (
        "    z = x * y\n", "    z = tl.where(program == 1, x + y, x * y)\n", "forward",
        r"stored by program \(1, 0, 0\) of multiply_kernel, broken.py:{line}; 64 of 129|tl.store(z_ptr",
    ),
    "a store without its mask": (
        "z.to(z_ptr.dtype.element_ty), mask=mask)", "z.to(z_ptr.dtype.element_ty))", "forward",
        r"multiply_kernel \(.*broken.py:{line}\), program \(2, 0, 0\): store to z_ptr\[129\], which has 129 elements"
        r"|tl.store(z_ptr",
    ),
    "a load without its mask": (
        "x_ptr + offsets, mask=mask).to(tl.float32)\n    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)\n    z",
        "x_ptr + offsets).to(tl.float32)\n    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)\n    z", "forward",
        r"multiply_kernel \(.*broken.py:{line}\), program \(2, 0, 0\): load from x_ptr\[129\]|x = tl.load(x_ptr",
    ),
    "an element that is never written": (
        "z.to(z_ptr.dtype.element_ty), mask=mask)",
        "z.to(z_ptr.dtype.element_ty), mask=offsets < n_elements - 1)", "forward",
        r"element \[2, 42\] was never written; it must be -?[\d.]+$|",
    ),
    "a program that never runs": (
        "multiply_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](x, y",
        "multiply_kernel[(x.numel() // BLOCK_SIZE,)](x, y", "forward",
        r"element \[2, 42\] was never written|",
    ),
    "an element that is left at zero": (
        "z = torch.empty_like(x)\n        multiply_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](x, y",
        "z = torch.zeros_like(x)\n        multiply_kernel[(x.numel() // BLOCK_SIZE,)](x, y", "forward",
        r"element \[2, 42\] is 0, but must be .*; not stored by a kernel$|",
    ),
    "NaN": (
        "    z = x * y\n", "    z = tl.where(offsets == 70, float('nan'), x * y)\n", "forward",
        r"element \[1, 27\] is nan, but must be .*; stored by program \(1, 0, 0\).*broken.py:{line}$|tl.store(z_ptr",
    ),
    "a missing gradient": (
        "        return dx, dy\n", "        return None, dy\n", "gradient x",
        r"no gradient reaches x; if the operator has no gradients, set differentiable=False|",
    ),
    "a gradient with a wrong sign": (
        "    dx = dz * y\n", "    dx = -dz * y\n", "gradient x",
        r"stored by program \(\d, 0, 0\) of multiply_backward_kernel, broken.py:{line}; 129 of 129|tl.store(dx_ptr",
    ),
    "a second backward that differs": (
        "        return dx, dy\n", "        return dx * context.backwards, dy\n", "gradient x",
        r"a second backward gives another gradient: element \[\d+, \d+\] is .*, but must be|",
    ),
    "a second backward without a gradient": (
        "        return dx, dy\n", "        return dx, dy if context.backwards == 1 else None\n", "gradient y",
        r"a second backward gives y no gradient|",
    ),
    "a second backward that raises": (
        "        context.backwards += 1\n",
        "        context.backwards += 1\n        assert context.backwards == 1, 'used up'\n", "backward",
        r"AssertionError: used up \(broken.py:{line}\)|used up",
    ),
    "a wrong shape": (
        "        return z\n", "        return z.flatten()\n", "forward",
        r"has shape \(129,\), but must have \(3, 43\)|",
    ),
    "a wrong dtype": (
        "        return z\n", "        return z.double()\n", "forward",
        r"has dtype torch.float64, but must have torch.float32|",
    ),
    "one output too many": (
        "        return z\n", "        return z, z.clone()\n", "forward",
        r"returns 2 tensors, but must return 1|",
    ),
    "None in place of a tensor": (
        "        return z\n", "        return None, z\n", "forward",
        r"result 0 is None, but must be a tensor|",
    ),
    "no output": (
        "    return Multiply.apply(x, y)\n", "    Multiply.apply(x, y)\n", "forward",
        r"TypeError: returns a NoneType, not a tensor or a tuple of tensors|",
    ),
    "an operator that raises": (
        "    return Multiply.apply(x, y)\n", "    raise ValueError('not\\nfor me [red]')\n", "forward",
        r"ValueError: not for me \[red\] \(broken.py:{line}\)$|raise ValueError",
    ),
    "a kernel that raises": (
        "    z = x * y\n", "    z = x * y\n    tl.static_assert(BLOCK_SIZE == 1, 'too large')\n", "forward",
        r"multiply_kernel \(.*broken.py:{line}\), program \(0, 0, 0\): .*too large|static_assert",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "what", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_fails_with_element_program_and_line(
    tmp_path: Path, right: str, wrong: str, what: str, message: str
) -> None:
    copy = broken_copy(tmp_path, right, wrong)
    pattern, marked = message.rsplit("|", 1)
    if marked:
        pattern = pattern.replace("{line}", str(line_of(copy, marked)))
    assert re.search(pattern, failure(checked(small(load_file(copy))), what).message)


def test_changed_input_fails_with_its_gradient(tmp_path: Path) -> None:
    copy = broken_copy(tmp_path, "    z = x * y\n", "    z = x * y\n    tl.store(x_ptr + offsets, x + 1, mask=mask)\n")
    failures = [result for result in checked(small(load_file(copy))) if not result.passed]
    assert [result.what for result in failures] == ["gradient y", "input x"]
    assert re.search(
        r"changes its input: element \[0, 0\] was .* and is now .*; stored by program \(0, 0, 0\) of "
        rf"multiply_kernel, broken.py:{line_of(copy, 'tl.store(x_ptr')}$",
        failures[1].message,
    )


class TestPrecision:
    @pytest.mark.parametrize(
        ("dtype", "coarser"),
        [
            (torch.float32, "float16"),
            (torch.float32, "bfloat16"),
            (torch.float16, "bfloat16"),
            (torch.bfloat16, "float8e5"),
        ],
        ids=str,
    )
    def test_a_result_in_a_coarser_dtype_fails(self, tmp_path: Path, dtype: torch.dtype, coarser: str) -> None:
        copy = broken_copy(tmp_path, "    z = x * y\n", f"    z = (x * y).to(tl.{coarser}).to(tl.float32)\n")
        result = failure(checked(small(load_file(copy)), dtype), "forward")
        assert result.error > result.allowed

    def test_error_in_the_norm_only_is_reported_with_figures(self) -> None:
        def slightly_off(x: Tensor) -> Tensor:
            return 2 * x + 1.5 * torch.finfo(x.dtype).eps * x.abs().mean() * torch.ones_like(x)

        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            return {"x": torch.linspace(1, 2, case.elements, dtype=dtype, device=device)}

        spec = simple(slightly_off, make_inputs=make_inputs, cases=[Case("many", elements=4000)], differentiable=False)
        result = failure(checked(spec), "forward")
        assert result.error > result.allowed
        assert re.match(
            rf"every element is within its limit, but the norm of the error is {result.error:.3g} of the "
            rf"reference's norm, allowed {result.allowed:.3g}; closest to its limit: element \[\d+\] is ",
            result.message,
        )

    def test_one_wrong_element_of_very_many_fails(self) -> None:
        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            return {"x": torch.ones(case.elements, dtype=dtype, device=device)}

        def one_off(x: Tensor) -> Tensor:
            y = x * 2
            y[-1] += 1e-5
            return y

        spec = simple(one_off, make_inputs=make_inputs, cases=[Case("many", elements=100_000)], differentiable=False)
        result = failure(checked(spec), "forward")
        assert result.error < result.allowed
        assert result.message.startswith("element [99999] is 2.00001, but must be 2 (off by 1e-05")

    def test_large_error_within_its_limit_is_not_reported(self) -> None:
        values = torch.tensor([1e6, 1.0, 1.0, 1.0])
        spec = simple(
            lambda x: 2 * x + torch.tensor([0.125, 0.0, 0.2, 0.0]),
            make_inputs=lambda case, dtype, device: {"x": values.clone()},
            differentiable=False,
        )
        message = failure(checked(spec), "forward").message
        assert message == "element [2] is 2.2, but must be 2 (off by 0.2, allowed 0.12)"  # [0] may be off by 0.24

    def test_the_first_wrong_element_is_named_and_the_worst_beside_it(self) -> None:
        spec = simple(
            lambda x: 2 * x + torch.tensor([0.0, 0.5, 0.0, 4.0]),
            make_inputs=lambda case, dtype, device: {"x": torch.ones(4)},
            differentiable=False,
        )
        message = failure(checked(spec), "forward").message
        assert message.startswith("element [1] is 2.5, but must be 2 (off by 0.5,")
        assert message.endswith("; 2 of 4 elements are wrong, the worst is [3], off by 4")

    def test_spec_roundings_raise_the_allowed_error(self) -> None:
        off = simple(lambda x: x * 2 * (1 + 4 * 2**-23), differentiable=False)
        failure(checked(off), "forward")
        assert all(result.passed for result in checked(replace(off, roundings=5)))
        failure(checked(replace(off, op=lambda x: x * 2 * (1 + 2**-18), roundings=5)), "forward")

    @pytest.mark.parametrize(("off", "passes"), [(1e-6, True), (1e-3, False)])
    def test_a_gradient_that_cancels_is_zero_up_to_the_rounding_of_its_terms(self, off: float, passes: bool) -> None:
        spec = simple(lambda x: x - x + off * (x - x.detach()), reference=lambda x: x - x)
        results = checked(spec)
        assert all(result.passed for result in results) == passes
        assert passes or failure(results, "gradient x")

    def test_tf32_is_disabled_during_the_check_and_restored(self) -> None:
        found: list[object] = []

        def noting(x: Tensor) -> Tensor:
            found.append((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()))
            return x * 2

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            checked(simple(noting))
            assert set(found) == {(False, "highest")}
            assert torch.get_float32_matmul_precision() == "high"
            assert torch.backends.cudnn.allow_tf32
        finally:
            torch.set_float32_matmul_precision(before)

    def test_numbers_are_shown_with_the_digits_that_differ(self) -> None:
        result = failure(checked(simple(lambda x: x * 2 * (1 + 2**-19), differentiable=False)), "forward")
        shown = re.search(r"is (\S+), but must be (\S+) ", result.message)
        assert shown is not None
        assert shown[1] != shown[2]

    def test_overflow_like_pytorch_passes(self) -> None:
        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            return {"x": torch.tensor([60000.0, 1.0, 2.0], dtype=dtype, device=device)}

        spec = simple(lambda x: x + x, make_inputs=make_inputs, dtypes=[torch.float16], differentiable=False)
        assert all(result.passed for result in checked(spec, torch.float16))
        forgets = replace(spec, op=lambda x: torch.where(x > 1000, torch.nan, x + x))
        assert failure(checked(forgets, torch.float16), "forward").message.startswith("element [0] is nan")
        coarse = replace(spec, op=lambda x: torch.where(x > 1000, torch.inf, x + x + 0.01))
        assert failure(checked(coarse, torch.float16), "forward").message.startswith("element [1] is 2.00")

    def test_infinity_and_nan_of_the_reference_are_expected(self) -> None:
        spec = simple(torch.log, lambda x: torch.log(x), differentiable=False,
                      make_inputs=lambda case, dtype, device: {"x": torch.tensor([0.0, -1.0, 2.0])})  # fmt: skip
        assert all(result.passed for result in checked(spec))
        finite = replace(spec, op=lambda x: torch.log(x).nan_to_num())
        message = failure(checked(finite), "forward").message
        assert re.match(r"element \[0\] is -3.40282e\+38, but must be -inf; 2 of 3 elements are wrong", message)

    def test_integers_must_be_equal_however_large(self) -> None:
        spec = simple(lambda x: x + 1, lambda x: x, dtypes=[torch.int64],
                      make_inputs=lambda case, dtype, device: {"x": torch.tensor([2**60], dtype=dtype)})  # fmt: skip
        assert "element [0] is" in failure(checked(spec, torch.int64), "forward").message
        assert all(result.passed for result in checked(replace(spec, op=torch.clone), torch.int64))

    def test_boolean_outputs_are_compared(self) -> None:
        spec = simple(lambda x: x > 0, lambda x: x > 0)
        assert all(result.passed for result in checked(spec))
        assert not checked(replace(spec, op=lambda x: x < 0))[0].passed


class TestOddOperators:
    def test_scalar_output(self) -> None:
        spec = simple(lambda x: x.sum(), lambda x: x.sum(), layouts=LAYOUTS)
        for layout in LAYOUTS:
            assert all(result.passed for result in checked(spec, layout=layout))
        result = failure(checked(simple(lambda x: x.sum() + 1, lambda x: x.sum())), "forward")
        assert result.message.startswith("the value is ")

    def test_empty_output(self) -> None:
        spec = simple(lambda x: x * 2, make_inputs=lambda case, dtype, device: {"x": torch.empty(0, 3, dtype=dtype)})
        assert [result.passed for result in checked(spec)] == [True, True]

    def test_gradient_where_the_reference_has_none_must_be_zero(self) -> None:
        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            return {"x": torch.randn(3, dtype=dtype), "unused": torch.randn(3, dtype=dtype)}

        spec = simple(lambda x, unused: x * 2 + 0 * unused, lambda x, unused: x * 2, make_inputs=make_inputs)
        assert all(result.passed for result in checked(spec))
        leaking = replace(spec, op=lambda x, unused: x * 2 + unused - unused.detach())
        assert "but must be 0" in failure(checked(leaking), "gradient unused").message

    def test_two_backwards_may_differ_by_rounding(self, tmp_path: Path) -> None:
        copy = broken_copy(
            tmp_path, "        return dx, dy\n", "        return dx * (1 + context.backwards * 2**-24), dy\n"
        )
        assert all(result.passed for result in checked(small(load_file(copy))))

    def test_reused_memory_is_not_blamed_on_the_kernel(self, tmp_path: Path) -> None:
        copy = broken_copy(tmp_path, "        return z\n", "        return z.copy_(x)\n")
        message = failure(checked(small(load_file(copy))), "forward").message
        assert "stored by program" not in message
        assert re.match(r"element \[\d+, \d+\] is .*, but must be", message)

    def test_nan_output_without_a_kernel_may_be_unwritten(self) -> None:
        result = failure(checked(simple(lambda x: torch.empty_like(x), differentiable=False)), "forward")
        assert "new memory holds NaN, so it may never have been written" in result.message

    def test_unwritten_integers_are_found(self, tmp_path: Path) -> None:
        source = (KERNELS / "largest_of_rows.py").read_text()
        forgets = source.replace(
            "tl.store(place_ptr + chosen, place)", "tl.store(place_ptr + chosen, place, mask=chosen < 2)"
        )
        assert forgets != source
        (tmp_path / "forgets.py").write_text(forgets)
        results = checked(load_file(tmp_path / "forgets.py"))
        assert failure(results, "forward 1").message.startswith("element [2] was never written; it must be ")

    def test_gap_between_rows_is_poisoned(self) -> None:
        def reads_the_gap(x: Tensor) -> Tensor:
            wider = x.as_strided((x.shape[0], x.shape[1] + 1), x.stride()) if x.stride(0) > x.shape[1] else x
            return 2 * x + 0 * wider.sum(1, keepdim=True)

        spec = simple(
            reads_the_gap, differentiable=False, make_inputs=lambda case, dtype, device: {"x": torch.randn(4, 5)}
        )
        row_strided = next(layout for layout in LAYOUTS if layout.name == "row-strided")
        assert "is nan" in failure(checked(spec, layout=row_strided), "forward").message
        assert checked(spec)[0].passed

    def test_complex_outputs_fail(self) -> None:
        spec = simple(lambda x: torch.complex(x, x), lambda x: torch.complex(x, -x), differentiable=False)
        assert failure(checked(spec), "forward").message == "is complex, which cannot be compared"

    def test_gpu_error_fails_later_trials(self) -> None:
        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

        result = failure(checked(simple(torch.clone, make_inputs=make_inputs)), "forward")
        assert result.message == "not checked: the GPU stopped working after an earlier error"

    @pytest.mark.gpu
    def test_messages_on_a_gpu_name_the_element(self, tmp_path: Path) -> None:
        copy = broken_copy(
            tmp_path, "z.to(z_ptr.dtype.element_ty), mask=mask)",
            "z.to(z_ptr.dtype.element_ty), mask=offsets < n_elements - 1)",
        )  # fmt: skip
        message = failure(checked(small(load_file(copy)), device="cuda"), "forward").message
        assert re.match(
            r"element \[2, 42\] is nan, but must be .*; new memory holds NaN, so it may never have been written",
            message,
        )


STRIDED = """
import torch, triton, triton.language as tl
from tilesmith import Case, Spec

@triton.jit
def product_kernel(x_ptr, y_ptr, z_ptr, x_row, x_column, y_row, y_column, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    mask = columns < COLUMNS
    x = tl.load(x_ptr + row * x_row + columns * x_column, mask=mask)
    y = tl.load(y_ptr + row * y_row + columns * y_column, mask=mask)
    tl.store(z_ptr + row * COLUMNS + columns, x * y, mask=mask)

def launched(x, y, x_row, x_column, y_row, y_column):
    z = torch.empty(x.shape)
    product_kernel[(len(x),)](x, y, z, x_row, x_column, y_row, y_column, COLUMNS=x.shape[1], BLOCK=8)
    return z

class Product(torch.autograd.Function):
    @staticmethod
    def forward(context, x, y):
        context.save_for_backward(x, y)
        return launched(x, y, *x.stride(), y.stride(0), y.stride(1))

    @staticmethod
    def backward(context, dz):
        x, y = context.saved_tensors
        return launched(dz, y, *dz.stride(), *y.stride()), launched(dz, x, dz.stride(0), dz.stride(1), *x.stride())

SPEC = Spec(name="product", op=Product.apply, reference=torch.mul, cases=[Case("odd", rows=3, columns=5)],
            make_inputs=lambda case, dtype, device: MADE, dtypes=[torch.float32])
"""
MADE = "{name: torch.randn(case.rows, case.columns) for name in 'xy'}"
MADE_WITH_LAYOUT = "{name: layout(torch.randn(case.rows, case.columns)) for name in 'xy'}"


class TestStridesOfAnotherTensor:
    @pytest.mark.parametrize("make_inputs", [MADE, MADE_WITH_LAYOUT])
    @pytest.mark.parametrize(
        ("right", "wrong", "layout", "what"),
        [
            ("y.stride(0)", "x.stride(0)", "row-strided", {"forward"}),
            ("y.stride(1)", "x.stride(1)", "transposed", {"forward"}),
            ("dz.stride(0)", "x.stride(0)", "row-strided", {"gradient y"}),
        ],
    )
    def test_fail(self, tmp_path: Path, make_inputs: str, right: str, wrong: str, layout: str, what: set[str]) -> None:
        source = STRIDED.replace("MADE", make_inputs)
        if "layout" in make_inputs:
            source = source.replace("dtype, device:", "dtype, device, layout:")
        (tmp_path / "right.py").write_text(source)
        (tmp_path / "wrong.py").write_text(source.replace(right, wrong))
        assert [one for one in check(load_file(tmp_path / "right.py"), device="cpu") if not one.passed] == []
        results = list(check(load_file(tmp_path / "wrong.py"), device="cpu"))
        assert {one.what for one in results if not one.passed and one.layout == layout} == what

    def test_of_vectors_fail(self) -> None:
        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            return {"x": torch.randn(4, dtype=dtype), "y": torch.randn(4, dtype=dtype)}

        def as_strided(x: Tensor, y: Tensor) -> Tensor:
            return x + y.as_strided(y.shape, x.stride())

        spec = simple(as_strided, torch.add, make_inputs=make_inputs, layouts=LAYOUTS, differentiable=False)
        assert {one.layout for one in check(spec, device="cpu") if not one.passed} == {"transposed"}

    def test_one_tensor_is_dense_in_memory_and_so_is_the_cotangent(self) -> None:
        seen: list[bool] = []

        class Noting(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, x: Tensor) -> Tensor:
                seen.append(x.t().is_contiguous())
                return 2 * x

            @staticmethod
            def backward(context: Any, dy: Tensor) -> Tensor:
                seen.append(dy.t().is_contiguous())
                return 2 * dy

        transposed = next(layout for layout in LAYOUTS if layout.name == "transposed")
        spec = simple(Noting.apply, make_inputs=lambda case, dtype, device: {"x": torch.randn(3, 5, dtype=dtype)})
        assert all(result.passed for result in checked(spec, layout=transposed))
        assert seen[:2] == [True, True]


class TestSpecsThatCannotBeUsed:
    def test_reference_that_raises(self) -> None:
        def reference(x: Tensor) -> Tensor:
            raise RuntimeError("no idea")

        expected = (
            r"simple: the reference fails for Case\('five', elements=5\), torch.float32: RuntimeError: no idea \("
        )
        with pytest.raises(SpecError, match=expected + r"test_check.py:\d+\)"):
            checked(simple(torch.clone, reference))

    def test_cost_that_raises(self) -> None:
        def cost(case: Case, dtype: torch.dtype) -> Cost:
            return Cost(Work(case.columns, 0))

        with pytest.raises(SpecError, match=r"simple: cost fails for Case.*: AttributeError: case 'five' has no size"):
            trials(simple(torch.clone, cost=cost), device="cpu")


class TestWhatIsTried:
    def test_large_cases_are_skipped_on_the_cpu(self) -> None:
        spec = load_file(MULTIPLY)
        assert {trial.case.name for trial in trials(spec, device="cpu")} == {"one", "odd"}
        assert {trial.case.name for trial in trials(spec, device="cuda")} == {"one", "odd", "large"}

    def test_case_size_is_found_without_allocating(self) -> None:
        devices = []

        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            devices.append(device)
            return {"x": torch.randn(case.elements, dtype=dtype, device=device)}

        huge = simple(torch.clone, make_inputs=make_inputs, cases=[Case("huge", elements=1 << 40)])
        assert trials(huge, device="cpu") == []
        assert set(devices) == {"meta"}

    def test_inputs_that_fail_on_meta_are_made_on_the_cpu(self) -> None:
        def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
            x = torch.randn(case.elements, dtype=dtype, device=device)
            return {"x": x / float(x.abs().max())}

        assert len(trials(simple(torch.clone, make_inputs=make_inputs), device="cpu")) == 1


class Scaled(torch.autograd.Function):
    """Scales several tensors by a number; the gradient is scaled by `Scaled.backward_scale`."""

    backward_scale = 0.5

    @staticmethod
    def forward(ctx: Any, scale: float, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(one * scale for one in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *(one * Scaled.backward_scale for one in gradients))


def scaled(tensors: list[Tensor], scale: float) -> Any:
    return Scaled.apply(scale, *tensors)  # type: ignore[no-untyped-call]  # PyTorch's


def of_a_list(op: Callable[..., Any], **fields: Any) -> Spec:
    """Return a spec of an operator of a list of tensors and a number."""
    return simple(
        op,
        lambda tensors, scale: tuple(one * scale for one in tensors),
        make_inputs=lambda case, dtype, device: (
            [torch.randn(size, dtype=dtype, device=device) for size in (case.elements, 3)], 0.5,
        ),
        **fields,
    )  # fmt: skip


@pytest.mark.parametrize("right", [True, False])
def test_gradients_of_tensors_in_a_list_are_compared(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaled, "backward_scale", 0.5 if right else 7.0)
    results = list(check(of_a_list(scaled)))
    wanted = {"forward 0": True, "forward 1": True, "gradient tensors[0]": right, "gradient tensors[1]": right}
    assert {one.what: one.passed for one in results} == wanted


def test_fixed_list_has_no_gradients() -> None:
    spec = of_a_list(scaled, fixed=["tensors"])
    assert {one.what for one in check(spec)} == {"forward 0", "forward 1"}


def test_change_of_a_tensor_in_a_list_is_found() -> None:
    def doubled_in_place(tensors: list[Tensor], scale: float) -> list[Tensor]:
        found = [one * scale for one in tensors]
        tensors[1].mul_(2)
        return found

    result = failure(list(check(of_a_list(doubled_in_place, differentiable=False))), "input tensors[1]")
    assert "changes its input" in result.message


def test_tensors_of_a_tuple_arrive_as_a_tuple() -> None:
    def doubled(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert type(tensors) is tuple
        return tuple(one * 2 for one in tensors)

    spec = simple(doubled, doubled, make_inputs=lambda case, dtype, device: {"tensors": (torch.ones(3), torch.ones(2))})
    assert all(one.passed for one in check(spec))


@pytest.mark.parametrize("result", [lambda y: (y, None), lambda y: [None, y, 3 * y, None]])
def test_none_among_the_results_is_compared_as_none(result: Callable[[Tensor], Any]) -> None:
    def op(x: Tensor) -> Any:
        return result(x * 2)

    found = checked(simple(op, op))
    assert [one for one in found if not one.passed] == []
    assert {"gradient x"} < {one.what for one in found}


def test_none_in_place_of_a_tensor_is_found() -> None:
    swapped = checked(simple(lambda x: (None, x * 2), lambda x: (x * 2, None)))
    assert [one.message for one in swapped] == ["result 0 is None, but must be a tensor", "result 1 must be None"]


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: torch.randint_like(x, 3)])
def test_reference_that_draws_random_numbers_is_refused(draw: Callable[[Tensor], Tensor]) -> None:
    def dropout(x: Tensor) -> Tensor:
        return x * (draw(x) > 0.5)

    make_inputs = lambda case, dtype, device: {"x": torch.randn(64, dtype=dtype, device=device)}  # noqa: E731
    with pytest.raises(SpecError, match="another call with the same inputs gives other results"):
        checked(simple(dropout, dropout, make_inputs=make_inputs))


def test_reference_with_nan_infinity_and_nothing_is_repeatable() -> None:
    def results(x: Tensor) -> tuple[Tensor, ...]:
        return x / 0, x * torch.nan, x[:0], x > 0

    assert all(one.passed for one in checked(simple(results, results, differentiable=False)))


@pytest.mark.parametrize(("fault", "right"), [(0.0, True), (1e-5, False)])
def test_output_whose_terms_cancel_is_zero_up_to_their_rounding(fault: float, right: bool) -> None:
    """With one class, label smoothing has three terms that cancel; PyTorch returns zero."""

    def smoothed(x: Tensor) -> Tensor:
        return x.logsumexp(-1) - 0.9 * x[:, 0] - (0.1 + fault) * x.mean(-1)

    def reference(x: Tensor) -> Tensor:
        target = torch.zeros(len(x), dtype=torch.int64)
        return torch.nn.functional.cross_entropy(x, target, label_smoothing=0.1, reduction="none")

    spec = simple(
        smoothed,
        reference,
        make_inputs=lambda case, dtype, device: {"x": torch.randn(64, 1, dtype=dtype, device=device)},
    )
    assert {result.passed for result in check(spec) if result.what == "forward"} == {right}


@triton.jit  # type: ignore[untyped-decorator]  # as Triton has it
def gather_kernel(x_ptr: Any, order_ptr: Any, y_ptr: Any, n_elements: Any, BLOCK_SIZE: tl.constexpr) -> None:
    index = tl.load(order_ptr + tl.arange(0, BLOCK_SIZE))
    mask = index < n_elements
    tl.atomic_add(y_ptr + index, 2 * tl.load(x_ptr + index, mask=mask), mask=mask)


def test_padding_of_indices_that_nobody_wrote_is_found() -> None:
    """The largest integer, which fills new memory in the first call, is past the mask."""

    def doubled(x: Tensor, padding: Callable[..., Tensor]) -> Tensor:
        order, y = padding((16,), dtype=torch.int64), torch.zeros_like(x)
        order[: len(x)] = torch.arange(len(x))
        gather_kernel[(1,)](x, order, y, len(x), BLOCK_SIZE=16)
        return y

    for padding, right in ((partial(torch.full, fill_value=16), True), (torch.empty, False)):
        results = list(check(simple(partial(doubled, padding=padding), kernels=True, differentiable=False)))
        assert all(result.passed for result in results) == right, padding
