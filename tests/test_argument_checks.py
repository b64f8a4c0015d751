"""Public functions refuse a wrong argument with one sentence that names the function and the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tilesmith as ts
from tilesmith.spec import SpecError

WRONG: dict[str, Any] = {
    "an object": object(), "a dict": {"a": 1}, "a complex number": 1j, "bytes": b"a", "2**70": 2**70,
    "nan": float("nan"), "-1.5": -1.5, "a list of 1.5": [1.5], "a tensor of two": torch.zeros(2),
    "on meta": torch.zeros(2, device="meta"),
}  # fmt: skip


def nothing() -> None:
    pass


def _spec(**changed: Any) -> ts.Spec:
    case = ts.Case("one", n=1)
    given = {"name": "mine", "op": nothing, "reference": nothing, "cases": [case], "make_inputs": nothing}
    return ts.Spec(**{**given, **changed})


def _adamw(**changed: Any) -> Any:
    return ts.optim.AdamW(**{"params": [torch.nn.Parameter(torch.zeros(2))], **changed})


# The function, its name in errors, and the arguments to try. None of the wrong values is right for any of them.
CALLS: list[tuple[Callable[..., Any], str, tuple[str, ...]]] = [
    (lambda **one: ts.lab.inspect(**{"program": nothing, **one}), "inspect",
     ("program", "arguments", "targets", "programs", "config", "device", "texts", "precision")),
    (lambda **one: ts.lab.assert_coalesced(**{"subject": nothing, **one}), "assert_coalesced", ("at_least",)),
    (lambda **one: ts.lab.assert_loads_per_element(**{"subject": nothing, "argument": "x", "expected": 1.0, **one}),
     "assert_loads_per_element", ("argument",)),
    (lambda **one: ts.lab.profile(**{"command": "true", **one}), "profile", ("command", "tool", "out")),
    (lambda **one: ts.patch.patch(torch.nn.Linear(2, 2), **one), "patch", ("norm", "mlp", "loss", "attention")),
    (ts.patch.trainer_callback, "trainer_callback", ("norm", "rotary", "mlp", "loss", "attention", "no_such_part")),
    (_adamw, "AdamW", ("betas", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")),
    (_spec, "SPEC", ("name", "op", "reference", "cases", "make_inputs", "dtypes", "layouts", "differentiable",
                     "roundings", "kernels", "formula", "cost", "fixed")),
    (lambda **one: ts.Case(**{"name": "one", **one}), "Case", ("name",)),
    (lambda **one: ts.Cost(**{"forward": ts.Work(1, 1), **one}), "Cost", ("forward", "backward")),
    (lambda **one: ts.Layout(**{"name": "a", "arrange": nothing, **one}), "Layout", ("name", "arrange")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "name", "arguments"), CALLS, ids=[name for _, name, _ in CALLS])
def test_wrong_argument_raises_one_sentence(call: Callable[..., Any], name: str, arguments: tuple[str, ...]) -> None:
    problems = []
    for argument in arguments:
        for what, value in WRONG.items():
            try:
                call(**{argument: value})
            except (TypeError, ValueError, SpecError) as error:
                text = str(error)
                if not text.startswith(name) or argument not in text or "\n" in text or len(text) > 300:
                    problems.append(f"{argument} {what}: {text[:200]}")
            except Exception as error:
                problems.append(f"{argument} {what}: {type(error).__name__} {str(error)[:200]}")
            else:
                problems.append(f"{argument} {what}: accepted")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), "1", None, 1j, [1.0]])
@pytest.mark.parametrize("argument", ["lr", "eps", "weight_decay"])
def test_adamw_refuses_rates_that_are_no_numbers(argument: str, wrong: Any) -> None:
    with pytest.raises(
        (TypeError, ValueError), match=rf"^AdamW: {argument} is .*, but must be a number of at least 0$"
    ):
        _adamw(**{argument: wrong})


def test_adamw_takes_what_torch_takes() -> None:
    made = _adamw(lr=torch.tensor(0.1), betas=[0.9, 0.99], fused=None)
    assert made.param_groups[0]["lr"] == torch.tensor(0.1)
    with pytest.raises(TypeError, match="AdamW: parms is no argument of the constructor"):
        ts.optim.AdamW(parms=[])  # type: ignore[call-arg]  # on purpose


@pytest.mark.usefixtures("forked")
def test_assertion_says_why_a_script_launched_nothing(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise RuntimeError('no luck')\n")
    with pytest.raises(AssertionError, match=r"no kernel was launched: .*no luck"):
        ts.lab.assert_in_bounds(script)  # type: ignore[arg-type]  # a path works too


def test_inspect_names_a_missing_script(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "none.py", "x" * 5000, ""):
        with pytest.raises(FileNotFoundError, match=r"^inspect: .* is not a file$"):
            ts.lab.inspect(missing)
