"""Right implementations pass in every summation order, small faults fail, and limits are the same on every machine."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from measure import RATES, Rates, found_faults, measured, refusals, summary, tasks
from subjects import Problem, problem_of, small_cases, subjects
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from covering import covering
from tilesmith.lab.check.context import seeded
from tilesmith.lab.expected import Expected
from tilesmith.spec import Spec

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "check.md"
ALLOWANCES = Path(__file__).with_name("allowances.json")
QUICK = ("softmax", "layer_norm", "matmul", "cross_entropy", "exercise rms-norm")


def subject(name: str) -> Spec:
    return next(spec for spec in subjects() if spec.name == name)


def smallest(spec: Spec, dtype: torch.dtype) -> Problem:
    cases = small_cases(spec)
    return Problem(spec, cases[min(1, len(cases) - 1)], dtype, 0)


def allowances(problem: Problem) -> dict[str, float]:
    """Return the allowed error of each output and gradient, in the norm and of the worst element."""
    expected = problem.expected
    found = {}
    for number, plain in enumerate(expected.plain.outputs):
        comparison = expected.compare_output(number, plain)
        found[f"forward {number}"] = comparison.allowed
    for name, gradient in expected.plain.gradients.items():
        if gradient is not None:
            found[f"gradient {name}"] = expected.compare_gradient(name, gradient).allowed
    return found


def stored_cases() -> list[tuple[str, str]]:
    return [(name, dtype) for name in QUICK for dtype in ("float32", "bfloat16")]


@pytest.mark.parametrize("name", QUICK)
def test_right_implementations_pass_in_every_order(name: str) -> None:
    for seed in range(3):
        assert refusals(problem_of(subject(name), seed))[1] == []


def test_few_elements_may_round_alike_in_every_draw() -> None:
    spec = subject("rms_norm_rope")
    one = next(case for case in spec.cases if case.name == "one")
    assert refusals(Problem(spec, one, torch.float16, 1000205))[1] == []


def test_errors_of_few_elements_differ_between_draws() -> None:
    spec = subject("exercise flash-attention-causal")
    large_scores = next(case for case in spec.cases if case.name == "large-scores")
    assert refusals(Problem(spec, large_scores, torch.float16, 7000098))[1] == []


@pytest.mark.parametrize(
    ("case", "dtype", "seed"), [("far-from-zero", "float32", 9000006), ("one-column", "float16", 9000001)]
)
def test_norm_of_pytorch_allows_the_rounding_of_its_mean(case: str, dtype: str, seed: int) -> None:
    """In every order of sums: the exercise's reference is one call of layer_norm, whose steps the model must round."""
    spec = subject("exercise layer-norm")
    chosen = next(one for one in spec.cases if one.name == case)
    assert refusals(Problem(spec, chosen, getattr(torch, dtype), seed))[1] == []


class Approximated(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    """Compute a function as a library may: off by three and a half roundings of its largest value."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        is_it = func.overloadpacket.__name__ == self._name and found.dtype == torch.float32
        return found + 3.5 * torch.finfo(torch.float32).eps * found.sign() if is_it else found


@pytest.mark.parametrize(("name", "function"), [("gelu", "erf"), ("silu", "sigmoid")])
def test_approximated_functions_pass(name: str, function: str) -> None:
    spec = subject(name)
    mode = Approximated(function)
    one = min(small_cases(spec), key=lambda case: spec.inputs(case, torch.float32, "cpu")["x"].numel())
    for seed in (0, 1, 2, 81, 117):
        problem = Problem(spec, one, torch.float32, seed)
        assert problem.verdict(spec.reference, mode)[0], seed


@pytest.mark.parametrize("name", QUICK)
def test_small_faults_are_found(name: str) -> None:
    spec = subject(name)
    found: dict[str, bool] = {}
    for case in small_cases(spec):
        for fault, seen in found_faults(Problem(spec, case, torch.float32, 0)).items():
            found[fault] = found.get(fault, False) or seen
    assert found
    assert [fault for fault, seen in found.items() if not seen] == []


def test_windows_that_share_their_maximum_are_not_refused() -> None:
    spec = subject("max_pool2d")
    large = next(case for case in small_cases(spec) if case.name == "large-window")
    assert refusals(Problem(spec, large, torch.float32, 13000098))[1] == []


def _added(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(50, dtype=x.dtype).index_add(0, index, x)


def _put(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(50, dtype=x.dtype).index_put((index,), x, accumulate=True)


@pytest.mark.parametrize("reference", [_added, _put])
def test_many_terms_of_one_element_may_be_added_one_after_another(reference: Any) -> None:
    inputs = {"x": torch.linspace(0.5, 1.0, 4096), "index": torch.full((4096,), 7)}
    ours = torch.zeros(50)
    ours[7] = inputs["x"].numpy().cumsum(dtype="float32")[-1].item()
    expected = Expected(reference, inputs)
    assert expected.compare_output(0, ours).passed
    ours[7] += 0.75  # one term more
    assert not expected.compare_output(0, ours).passed


def test_terms_of_overlapping_windows_may_be_added_one_after_another() -> None:
    x = torch.linspace(0.5, 1.0, 96 * 96).view(1, 1, 96, 96)
    expected = Expected(lambda x: torch.nn.functional.avg_pool2d(x, 64, stride=1), {"x": x})
    windows = x[0, 0].unfold(0, 64, 1).unfold(1, 64, 1).reshape(33, 33, -1).numpy()
    ours = torch.from_numpy(windows.cumsum(-1, dtype="float32")[..., -1] / windows.dtype.type(4096))[None, None]
    assert expected.compare_output(0, ours).passed
    assert not expected.compare_output(0, ours * (1 + 1 / 4096)).passed  # one term more


@covering(name=["add_rms_norm", "rms_norm", "rms_norm_rope"], seed=[6000001, 6000028])
def test_an_eps_left_out_is_found_at_every_seed(name: str, seed: int) -> None:
    spec = subject(name)
    found = [found_faults(Problem(spec, case, torch.float32, seed))["eps left out"] for case in small_cases(spec)]
    assert any(found)


@pytest.mark.parametrize(("name", "dtype"), stored_cases())
def test_allowed_errors_are_those_of_every_machine(name: str, dtype: str) -> None:
    if dtype not in [str(one).removeprefix("torch.") for one in subject(name).dtypes]:
        pytest.skip("the exercise has no such dtype")
    stored: dict[str, Any] = json.loads(ALLOWANCES.read_text())
    assert allowances(smallest(subject(name), getattr(torch, dtype))) == stored[f"{name} {dtype}"]


def test_allowed_errors_do_not_depend_on_how_pytorch_computes() -> None:
    problem = smallest(subject("layer_norm"), torch.float32)
    wanted = allowances(problem)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        with torch.backends.mkldnn.flags(enabled=False):
            again = allowances(Problem(problem.spec, problem.case, problem.dtype, problem.seed))
    finally:
        torch.set_num_threads(threads)
    assert again == wanted


def test_random_numbers_are_those_of_every_machine() -> None:
    with seeded("cpu", 3):
        found = [torch.randn(20)[17].item(), torch.rand(20)[17].item(), torch.empty(20).normal_()[17].item()]
    assert found == [pytest.approx(one, rel=0, abs=0) for one in json.loads(ALLOWANCES.read_text())["random"]]


def test_documentation_shows_the_stored_rates() -> None:
    rates = json.loads(RATES.read_text())
    assert rates["seeds"] >= 10_000
    assert rates["refused"] == []
    assert summary(rates) in DOCUMENTATION.read_text()


@pytest.mark.slow
def test_no_right_implementation_is_refused_and_every_fault_found() -> None:
    rates = Rates()
    for found in measured(tasks(first=0, seeds=4 * len(subjects()), with_faults=4)):
        rates.add(found)
    assert rates.refused == []
    assert rates.missed == {}


if __name__ == "__main__":  # store the allowed errors
    made: dict[str, Any] = {
        f"{name} {dtype}": allowances(smallest(subject(name), getattr(torch, dtype)))
        for name, dtype in stored_cases()
        if getattr(torch, dtype) in subject(name).dtypes
    }
    with seeded("cpu", 3):
        made["random"] = [torch.randn(20)[17].item(), torch.rand(20)[17].item(), torch.empty(20).normal_()[17].item()]
    ALLOWANCES.write_text(json.dumps(made, indent=1) + "\n")
    sys.exit()
