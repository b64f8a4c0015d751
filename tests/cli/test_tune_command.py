"""`tilesmith tune`: wrong usage, and what is stored."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from tilesmith.cli import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tune", *arguments])
    return result.exit_code, result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens without a GPU")
def test_without_a_gpu_prints_one_line() -> None:
    status, output = run("silu")
    assert status == 2
    assert output.strip().splitlines() == [
        "tilesmith: tuning measures kernels on a GPU, and this machine has none; see `tilesmith doctor`"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mish"], "'mish' is not an operator"),
        (["my_kernel.py"], "for a file: tilesmith bench my_kernel.py --sweep"),
        (["silu", "--case", "huge"], "silu has no case 'huge'"),
        (["silu", "--dtype", "int8"], "int8 is not one of"),
        (["silu", "--dtype", "bf16,int4"], "int4 is not one of"),
    ],
)
def test_rejects_unknown_operators_cases_and_dtypes(arguments: list[str], message: str) -> None:
    status, output = run(*arguments)
    assert status == 2
    assert message in output
    assert len(output.strip().splitlines()) == 1


@pytest.mark.gpu
def test_stored_configuration_is_used_by_calls() -> None:
    from tilesmith.ops import SPECS
    from tilesmith.ops.runtime import tuning

    status, output = run("silu", "--case", "seed", "--dtype", "bfloat16")
    assert status == 0, output
    device = torch.device("cuda", torch.cuda.current_device())
    kept = json.loads(tuning.table_path(device).read_text())
    (bucket, entry) = next(iter(kept["configs"]["silu_forward"].items()))
    x = torch.randn(1024, 512, device=device, dtype=torch.bfloat16)
    plan = SPECS["silu"].op.forward.plan_for(x)  # type: ignore[attr-defined]  # an Operator
    assert plan.choices[0].bucket == bucket
    assert plan.choices[0].config.fields() == entry["config"]
    assert kept["winners"]["silu"]
