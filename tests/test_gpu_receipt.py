"""The stored receipt of the GPU suite, and the code that writes and reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gpu_receipt


def stored() -> dict[str, Any]:
    receipt: dict[str, Any] = json.loads(gpu_receipt.RECEIPT.read_text())
    return receipt


def test_stored_receipt_has_no_failures() -> None:
    receipt = stored()
    assert receipt["failed"] == 0, receipt["failures"]
    assert receipt["passed"] > 1000


def test_stored_receipt_names_its_origin() -> None:
    assert {"commit", "device", "torch", "triton", "seconds", "digest", "date"} <= stored().keys()


@pytest.mark.slow
def test_files_with_gpu_tests_are_all_of_them() -> None:
    """A fixture or a helper may give the mark too, so the collected tests are compared."""

    def collected(*files: str) -> set[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            *files,
        ]
        printed = subprocess.run(command, cwd=gpu_receipt.ROOT, capture_output=True, text=True, check=False).stdout
        return {line for line in printed.splitlines() if "::" in line}

    assert collected(*gpu_receipt.files_with_gpu_tests()) == collected("tests") != set()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in (*gpu_receipt.SOURCES, *gpu_receipt.TESTS):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "one.py").write_text("x = 1\n")
    return tmp_path


def test_changed_added_and_removed_files_are_found_and_kernels_named(checkout: Path) -> None:
    receipt = {"files": gpu_receipt.digests(checkout)}
    assert gpu_receipt.changed_files(receipt, checkout) == []
    (checkout / "src/tilesmith/ops/one.py").write_text("x = 2\n")
    (checkout / "src/tilesmith/ops/new.py").write_text("@triton.jit\ndef add_kernel(x_ptr): ...\n")
    (checkout / "tests/ops/one.py").unlink()
    changed = gpu_receipt.changed_files(receipt, checkout)
    assert changed == ["src/tilesmith/ops/new.py", "src/tilesmith/ops/one.py", "tests/ops/one.py"]
    told = gpu_receipt.note({**stored(), **receipt}, changed, checkout)
    assert told.endswith("since then 1 kernel files, 1 other sources and 1 tests changed.\n  src/tilesmith/ops/new.py")


def test_a_test_without_a_gpu_does_not_change_what_a_receipt_says(checkout: Path) -> None:
    on_cpu, on_gpu = checkout / "tests/ops/test_on_cpu.py", checkout / "tests/ops/test_on_gpu.py"
    on_cpu.write_text("def test_one(): ...\n")
    on_gpu.write_text("@pytest.mark.gpu\ndef test_two(): ...\n")
    files = gpu_receipt.digests(checkout)
    assert "tests/ops/test_on_gpu.py" in files
    receipt = {"files": {**files, "tests/ops/test_on_cpu.py": "as older receipts do"}}
    assert gpu_receipt.changed_files(receipt, checkout) == []
    for file in (on_cpu, on_gpu):
        file.write_text(file.read_text() + "# changed\n")
    assert gpu_receipt.changed_files(receipt, checkout) == ["tests/ops/test_on_gpu.py"]


@pytest.mark.parametrize(("body", "outcome"), [("assert True", "passed"), ("assert False", "failed")])
def test_results_are_counted(body: str, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(f"def test_one():\n    {body}\n")
    counts: Counter[str] = Counter()
    failures: list[str] = []
    gpu_receipt._pytest([str(tmp_path), "--rootdir", str(tmp_path)], counts, failures)
    assert counts == {outcome: 1}
    assert failures == (["test_one.py::test_one"] if outcome == "failed" else [])


def test_rerun_counts_what_passes_now_and_says_so() -> None:
    receipt = {"passed": 10, "failed": 2, "failures": ["a.py::test_a", "b.py::test_b"]}
    after = gpu_receipt.with_rerun(receipt, Counter(passed=1, failed=1), ["b.py::test_b"], "0123abc")
    assert (after["passed"], after["failed"], after["failures"]) == (11, 1, ["b.py::test_b"])
    assert after["reruns"][0]["tests"] == receipt["failures"]
    assert after["reruns"][0]["commit"] == "0123abc"


def test_interrupted_run_says_what_is_left() -> None:
    receipt = {**stored(), "passed": 0, "seconds": 0.0, "left": [gpu_receipt.CROWD, gpu_receipt.ALONE]}
    half = gpu_receipt.with_part(receipt, gpu_receipt.CROWD, Counter(passed=7), [], 61.04)
    assert half["left"] == [gpu_receipt.ALONE]
    assert "7 passed, 0 failed on NVIDIA H200, 'gpu and alone' not run" in gpu_receipt.note(half, [])
    whole = gpu_receipt.with_part(half, gpu_receipt.ALONE, Counter(passed=1, failed=1), ["a.py::test_a"], 1.0)
    assert (whole["passed"], whole["failed"], whole["left"], whole["failures"]) == (8, 1, [], ["a.py::test_a"])
    assert whole["seconds"] == 62.0


def test_run_that_ends_without_a_report_counts_as_failed(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    failures: list[str] = []
    assert gpu_receipt._pytest([str(tmp_path), "--no-such-option"], counts, failures)  # without our conftest.py
    assert counts["failed"] == 1
