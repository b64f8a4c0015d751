import json
import re
from pathlib import Path

from typer.testing import CliRunner

from tilesmith.cli import app
from tilesmith.ops import SPECS

runner = CliRunner()


def test_lists_every_operator_with_its_formula() -> None:
    result = runner.invoke(app, ["ops"])
    assert result.exit_code == 0
    for name, spec in SPECS.items():
        found = re.search(rf"^{name} +fp32 fp16 bf16 +yes +\d[^\n]*\n((?:\S.*\n)+)", result.output, re.MULTILINE)
        assert found, name
        assert " ".join(spec.formula.split()) in " ".join(found[1].split())


def test_fits_a_terminal_of_80_columns() -> None:
    assert max(map(len, runner.invoke(app, ["ops"]).output.splitlines())) <= 80


def test_shows_the_cost_of_rms_norm() -> None:
    # Forward reads x and writes y; backward reads dy and x and writes dx: 2 bytes each in bf16. The weight is small.
    assert re.search(r"^rms_norm .* 4 / 6 +4 / ", runner.invoke(app, ["ops"]).output, re.MULTILINE)


def test_json_holds_the_table(tmp_path: Path) -> None:
    assert runner.invoke(app, ["ops", "--json", str(tmp_path / "ops.json")]).exit_code == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "ops.json").read_text())["operators"]}
    assert set(rows) == set(SPECS)
    assert rows["silu"]["dtypes"] == ["float32", "float16", "bfloat16"]
    assert rows["silu"]["per_element"]["forward"] == {"bytes": 4.0, "flops": 5.0}
    assert "x" in rows["silu"]["signature"]


def test_unwritable_file_prints_one_line(tmp_path: Path) -> None:
    result = runner.invoke(app, ["ops", "--json", str(tmp_path)])
    assert result.exit_code == 2
    assert result.output.splitlines() == [f"tilesmith: cannot write {tmp_path}: Is a directory"]
