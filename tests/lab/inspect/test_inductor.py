"""The Triton kernels that `torch.compile` generates, inspected without a GPU."""

from collections.abc import Iterator
from pathlib import Path

import planted
import pytest
import torch
from torch.utils._triton import has_triton

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.running.script import inspect_script

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins are for machines without a GPU")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled_module_shows_kernels_of_forward_and_backward() -> None:
    results = {}

    def program() -> None:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).to("cuda")
        compiled = torch.compile(module, mode="max-autotune")
        x = torch.randn(5, 8, device="cuda", requires_grad=True)
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        plain = module(x)
        (expected,) = torch.autograd.grad(plain.square().sum(), x)
        results["forward"] = torch.allclose(y, plain, atol=1e-4)
        results["backward"] = torch.allclose(gradient, expected, atol=1e-4)

    found = inspect(program, targets=["cuda:90"])
    names = [kernel.name for kernel in found.kernels]
    assert results == {"forward": True, "backward": True}
    assert any("backward" in name for name in names), (names, found.notes)
    assert any("backward" not in name for name in names)
    assert all(name.startswith("triton_") for name in names)
    assert not [one for one in found.findings if one.severity == "error"]


def test_compiled_function_may_index_and_create_tensors_on_cuda() -> None:
    results = []

    def program() -> None:
        def shifted(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            assert x.is_cuda
            return x[index, 1:5].sum(1) + torch.arange(x.shape[0], device="cuda") + torch.zeros(1, device=x.device)

        x, index = torch.randn(30, 9, device="cuda"), torch.randint(0, 30, (30,), device="cuda")
        results.append(torch.allclose(torch.compile(shifted)(x, index), shifted(x, index), atol=1e-5))

    assert not has_triton()  # PyTorch keeps this answer
    found = inspect(program, targets=["cuda:90"])
    assert results == [True]
    assert len(found.kernels) == 1
    assert not has_triton()


def test_kernel_of_the_programs_own_is_launched_by_a_compiled_function() -> None:
    results = []

    def program() -> None:
        def doubled(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            planted.copy[(3,)](x, y, x.numel(), BLOCK=128)
            return torch.relu(y) * 2

        x = torch.randn(300, device="cuda")
        results.append(torch.equal(torch.compile(doubled)(x), torch.relu(x) * 2))

    found = inspect(program, targets=["cuda:90"])
    assert results == [True]
    assert "copy" in [kernel.name for kernel in found.kernels]


def test_kernel_of_the_programs_own_is_listed_once_with_every_launch() -> None:
    def program() -> None:
        def copied(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            planted.copy[(3,)](x, y, x.numel(), BLOCK=128)
            return y

        x = torch.randn(300, device="cuda")
        compiled = torch.compile(copied)
        compiled(x)
        compiled(x)
        copied(x)
        planted.copy[(5,)](torch.randn(600, device="cuda"), torch.empty(600, device="cuda"), 600, BLOCK=128)

    found = inspect(program, targets=["cuda:90"])
    launches = [(kernel.name, kernel.grid, kernel.launches) for kernel in found.kernels]
    assert launches == [("copy", (3, 1, 1), 3), ("copy", (5, 1, 1), 1)]
    assert {Path(kernel.file).name for kernel in found.kernels} == {"planted.py"}


def test_autotuned_kernel_of_the_programs_own_is_listed_once() -> None:
    def program() -> None:
        def copied(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            planted.tuned_by_warps[(3,)](x, y, x.numel(), BLOCK=128)
            return y

        x = torch.randn(300, device="cuda")
        torch.compile(copied)(x)
        copied(x)

    found = inspect(program, targets=["cuda:90"])
    assert [(kernel.name, kernel.launches) for kernel in found.kernels] == [("tuned_by_warps", 2)]


def test_function_that_cannot_be_compiled_runs_and_is_named() -> None:
    results = []

    def program() -> None:
        def with_break(x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x + 1

        results.append(torch.compile(with_break, fullgraph=True)(torch.zeros(3, device="cuda")).tolist())

    found = inspect(program, targets=["cuda:90"])
    assert results == [[1, 1, 1]]
    assert found.notes[0].startswith("torch.compile left with_break as it is, so its Inductor kernels are not seen: ")


@pytest.mark.slow
def test_generated_file_is_inspected_as_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.compile(lambda x: torch.softmax(x, 1))(torch.randn(5, 70, device='cuda'))\n")
    assert [kernel.grid for kernel in inspect_script(script).kernels] == [(5, 1, 1)]
    generated = next(file for file in tmp_path.rglob("*.py") if "def benchmark_compiled_module" in file.read_text())
    found = inspect_script(generated)
    assert [kernel.grid for kernel in found.kernels] == [(5, 1, 1)]
    assert found.ending.kind == "finished"


def test_compiled_class_stays_a_class() -> None:
    def program() -> None:
        @torch.compile
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(context: object, x: torch.Tensor) -> torch.Tensor:
                return 2 * x

            @staticmethod
            def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
                return 2 * gradient

        x = torch.ones(3, device="cuda", requires_grad=True)
        y = Double.apply(x)  # type: ignore[no-untyped-call]  # torch has no types for it
        gradients.extend(torch.autograd.grad(y.sum(), x))

    gradients: list[torch.Tensor] = []
    inspect(program, targets=["cuda:90"])
    assert torch.equal(gradients[0], torch.full((3,), 2.0))
