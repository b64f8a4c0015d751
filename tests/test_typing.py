"""A user's file that calls the operators passes mypy --strict and pyright, and wrong calls do not."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilesmith import ops

api: Any = pytest.importorskip("mypy.api")  # a machine with a GPU may have no type checker

ROOT = Path(__file__).parents[1]

# Functions of PyTorch that have no annotations.
UNTYPED = re.compile(r'Call to untyped function "(backward|bsr_softmax)"')

# A `type: ignore` that hides no error is an error itself: so every wrong call below must be seen as wrong.
CALLS = """
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import attention, matmul

x, weight, target = torch.randn(4, 8), torch.ones(8), torch.zeros(4, dtype=torch.int64)
heads = torch.randn(1, 2, 4, 16)

y: Tensor = ts.ops.rms_norm(x, weight)
y = ts.ops.rms_norm(x, weight, eps=1e-5)
normed, total = ts.ops.add_rms_norm(x, x, weight)
y = normed + total
y = matmul(x, x.t(), activation="relu", out_dtype=torch.float32)
y = attention(heads, heads, heads, causal=True, window=(8, 0))
q, k = ts.ops.rope(heads, heads, torch.ones(4, 16), torch.zeros(4, 16))
y = ts.ops.max_pool2d(heads, (2, 2), padding=1)
loss: Tensor = ts.ops.cross_entropy(x, target, reduction="sum")
y = ts.ops.triangle_attention(*[torch.randn(1, 3, 3, 2, 4) for _ in range(3)], gate=None)
norm = ts.nn.RMSNorm(8)

with ts.use("interpret"):
    y = ts.ops.silu(x)

number: int = ts.ops.silu(x)  # type: ignore[assignment]
ts.ops.silu("x")  # type: ignore[arg-type]
ts.ops.silu(x, x)  # type: ignore[call-arg]
ts.ops.rms_norm(x, weight, epsilon=1e-5)  # type: ignore[call-arg]
attention(heads, heads, heads, True)  # type: ignore[call-arg]
attention(heads, heads, heads, causal="yes")  # type: ignore[arg-type]
ts.ops.softmaxx(x)  # type: ignore[attr-defined]
"""


def readme_examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def user_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """README's examples, each a file, and the calls above."""
    folder = tmp_path_factory.mktemp("user")
    texts = {f"readme_{number}": text for number, text in enumerate(readme_examples())} | {"calls": CALLS}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return [folder / f"{name}.py" for name in texts]


@pytest.fixture(scope="module")
def by_mypy(user_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy --strict says of these files, and the type of every operator."""
    shown = tmp_path_factory.mktemp("shown") / "shown.py"
    shown.write_text("import tilesmith as ts\n" + "".join(f"reveal_type(ts.ops.{name})\n" for name in ops.SPECS))
    # The project's own settings, which are strict, so that mypy finds the package in its cache.
    given = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    report, errors, _ = api.run([*given, *map(str, user_files), str(shown)])
    assert not errors, errors
    return str(report).splitlines()


def test_readme_has_examples_to_check() -> None:
    assert any("ts.ops." in example for example in readme_examples())


def test_users_file_passes_mypy_strict_and_wrong_calls_do_not(user_files: list[Path], by_mypy: list[str]) -> None:
    names = {file.name for file in user_files}
    errors = [line for line in by_mypy if Path(line.split(":")[0]).name in names and not UNTYPED.search(line)]
    assert errors == []


def test_every_operator_has_a_typed_signature(by_mypy: list[str]) -> None:
    shown = [line for line in by_mypy if "shown.py" in line and "Revealed type" in line]
    assert len(shown) == len(ops.SPECS)
    untyped = [
        line for line in shown if not re.search(r"Operator\[\[\w+: .*\], (tuple\[)?torch\._tensor\.Tensor", line)
    ]
    assert untyped == []


def test_users_file_passes_pyright(user_files: list[Path]) -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    settings = {"extraPaths": [str(ROOT / "src")], "reportUnnecessaryTypeIgnoreComment": "error"}
    folder = user_files[0].parent
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(folder),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)["generalDiagnostics"]
    assert [one for one in found if one["severity"] == "error"] == []


@pytest.mark.parametrize("name", ops.SPECS)
def test_every_operator_with_a_spec_is_exported_by_name(name: str) -> None:
    assert name in ops.__all__
    assert vars(ops)[name] is ops.SPECS[name].op
