"""AMD's profilers, with output written by hand from their documentation: see recorded/README.md."""

import os
import shutil
from pathlib import Path

import pytest

from tilesmith.lab.profile.rocprof import (
    counters_command,
    read_counters,
    read_trace,
    trace_command,
)
from tilesmith.lab.profile.summary import ProfileError

RECORDED = Path(__file__).with_name("recorded")
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>"


def test_reads_kernels_launch_overhead_and_idle_time_from_a_trace() -> None:
    summary = read_trace(RECORDED / "rocprofv3")
    kernel, fill = sorted(summary.entries, key=lambda entry: entry.name)
    assert (kernel.name, kernel.calls) == ("rms_norm_forward_kernel", 4)
    assert kernel.total_us == pytest.approx(284.0)
    assert fill.name.startswith(FILL)
    assert fill.calls == 2
    assert summary.launches == 6
    assert summary.launch_us == pytest.approx((4 * 4.2 + 2 * 5.4) / 6)  # hipMalloc is not a launch
    busy = kernel.total_us + fill.total_us
    assert summary.busy_percent == pytest.approx(100 * busy / (busy + 5 * 20))


def test_falls_back_to_the_trace_without_statistics(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "rocprofv3/profile_kernel_trace.csv", tmp_path / "7_kernel_trace.csv")
    summary = read_trace(tmp_path)
    by_name = {entry.name: entry for entry in summary.entries}
    expected = {entry.name: entry for entry in read_trace(RECORDED / "rocprofv3").entries}
    assert by_name == expected
    assert summary.launch_us is None


def test_summary_names_the_timeline_file(tmp_path: Path) -> None:
    host = tmp_path / "some-host"
    shutil.copytree(RECORDED / "rocprofv3", host)
    (host / "profile_results.pftrace").touch()
    path, how = read_trace(tmp_path).files[0]
    assert path == str(host / "profile_results.pftrace")
    assert "ui.perfetto.dev" in how


def test_raises_without_kernels(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="rocprofv3 recorded no kernel"):
        read_trace(tmp_path)
    with pytest.raises(ProfileError, match="rocprof-compute recorded nothing"):
        read_counters(tmp_path)


def test_traces_with_the_flags_that_give_statistics_and_a_timeline(tmp_path: Path) -> None:
    command = trace_command(["sh", "-c", "true"], tmp_path)
    assert command[0] == "rocprofv3"
    assert {"--kernel-trace", "--hip-runtime-trace", "--stats", "csv", "pftrace"} <= set(command)
    assert command[command.index("--output-directory") + 1] == str(tmp_path)
    assert command[command.index("--") + 1 :] == ["sh", "-c", "true"]


def test_counters_name_the_workload_and_how_to_analyse_it() -> None:
    summary = read_counters(RECORDED / "rocprof-compute")
    (kernel,) = summary.entries
    assert (kernel.name, kernel.calls) == ("rms_norm_forward_kernel", 2)
    assert kernel.total_us == pytest.approx(141.4)
    path, how = summary.files[0]
    assert path.endswith("MI300X_A1")
    assert how == f"run: rocprof-compute analyze --path {path}"


@pytest.mark.parametrize(
    ("help_text", "option"), [("--output-directory DIR", "--output-directory"), ("-p, --path", "--path")]
)
def test_output_option_follows_the_installed_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, help_text: str, option: str
) -> None:
    tool = tmp_path / "rocprof-compute"
    tool.write_text(f"#!/bin/sh\necho '{help_text}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command = counters_command(["sh"], tmp_path / "out")
    assert command[:4] == ["rocprof-compute", "profile", "--name", "profile"]
    assert command[4:] == [option, str(tmp_path / "out"), "--", "sh"]
