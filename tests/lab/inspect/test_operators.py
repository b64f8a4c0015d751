"""Every operator of this package, inspected for both vendors, has no error findings."""

from __future__ import annotations

import pytest
import torch

from tilesmith.lab.check import interpretable
from tilesmith.lab.inspect import inspect, session
from tilesmith.lab.inspect.metrics.compiled_targets import compiled_or_error
from tilesmith.ops import SPECS, use
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.plan import planning_for
from tilesmith.spec import Spec
from tilesmith.toolchain.compiler import Binary, Target
from tilesmith.toolchain.interpreter import Launched

compiled_first: dict[tuple[object, Target], Binary | str] = {}


@pytest.fixture(autouse=True)
def each_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile each kernel once. test_every_kernel_compiles.py has the other variants."""

    def compiled_once(launched: Launched, target: Target) -> Binary | str:
        key = launched.kernel, target
        if key not in compiled_first:
            compiled_first[key] = compiled_or_error(launched, target)
        return compiled_first[key]

    monkeypatch.setattr(session, "compiled_or_error", compiled_once)


# One operator per kind of kernel; the others take a minute to compile and are slow tests.
FIRST = ("silu", "sum", "layer_norm", "matmul")


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        pytest.param(
            SPECS[name], target, id=f"{name}-{target}",
            marks=[] if name in FIRST and target == "cuda:90" else [pytest.mark.slow],
        )
        for name in SPECS
        for target in ("cuda:90", "hip:gfx942")
    ],
)  # fmt: skip
def test_an_operator_has_no_errors_for_either_vendor(spec: Spec, target: str) -> None:
    case = [case for case in spec.cases if interpretable(spec, case)][:2][-1]
    inputs = spec.inputs(case, torch.float32, "cpu")

    def program() -> None:
        with use("interpret"):
            leaves = {
                name: value.detach().requires_grad_(value.is_floating_point() and spec.differentiable)
                if isinstance(value, torch.Tensor)
                else value
                for name, value in inputs.items()
            }
            output = spec.op(**leaves)
            outputs = [one for one in (output if isinstance(output, tuple) else (output,)) if one.requires_grad]
            torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])

    dispatch.forget()  # plans depend on the pretended GPU, which may have wider warps
    with planning_for(target):
        found = inspect(program, targets=(target,))
    dispatch.forget()
    assert found.kernels, "no kernel was launched"
    assert [
        f"{one.file}:{one.line} {one.kind}: {one.message}" for one in found.findings if one.severity == "error"
    ] == []
    for kernel in found.kernels:
        assert set(kernel.targets) == {target}
        assert all(facts.error is None for facts in kernel.targets.values())
