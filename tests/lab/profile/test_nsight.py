"""Reading Nsight Compute's raw page as CSV, with documented columns and invented values."""

from pathlib import Path

import pytest

from tilesmith.lab.profile.nsight import LAUNCHES, command, read, summarised
from tilesmith.lab.profile.summary import ProfileError

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","dram__bytes.sum","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum",'
    '"sm__throughput.avg.pct_of_peak_sustained_elapsed","sm__warps_active.avg.pct_of_peak_sustained_active"'
)
UNITS = '"","","","","","","","","","","","byte","%","ns","%","%"'


def launch(number: int, name: str, moved: str, memory: str, time: str, compute: str, occupancy: str) -> str:
    values = (
        number, 42, "python3.12", "127.0.0.1", name, 1, 7, "(256, 1, 1)", "(16384, 1, 1)", 0, "9.0",
        moved, memory, time, compute, occupancy,
    )  # fmt: skip
    return ",".join(f'"{value}"' for value in values)


def test_reads_time_bandwidth_and_utilisation_weighted_with_time() -> None:
    lines = [
        "==PROF== Connected to process 42 (/usr/bin/python3.12)",
        HEADER,
        UNITS,
        launch(0, "rms_norm_kernel", "268,000,000", "90.0", "64,000", "30.0", "80.0"),
        launch(1, "rms_norm_kernel", "268,000,000", "60.0", "128,000", "15.0", "80.0"),
        launch(2, "fill", "n/a", "n/a", "3,000", "1.0", "n/a"),
        "==PROF== Disconnected from process 42",
    ]
    summary = summarised(lines, [])
    norm, fill = summary.entries
    assert (norm.name, norm.calls, norm.total_us) == ("rms_norm_kernel", 2, 192.0)
    assert norm.tb_per_s == pytest.approx(536e6 / 192e-6 / 1e12)
    assert norm.memory_percent == pytest.approx(70.0)
    assert norm.compute_percent == pytest.approx(20.0)
    assert norm.occupancy_percent == pytest.approx(80.0)
    assert (fill.tb_per_s, fill.memory_percent, fill.occupancy_percent) == (None, None, None)
    assert summary.launches == 3


def test_converts_units_of_the_report() -> None:
    lines = [HEADER, UNITS.replace("byte", "Mbyte").replace("ns", "us"), launch(0, "k", "268", "9", "64", "3", "8")]
    entry = summarised(lines, []).entries[0]
    assert entry.total_us == 64
    assert entry.tb_per_s == pytest.approx(4.1875)


def test_notes_when_only_the_first_launches_were_measured() -> None:
    lines = [HEADER, UNITS, *(launch(number, "k", "1", "1", "1", "1", "1") for number in range(LAUNCHES))]
    assert "Only the first 200 launches were measured." in summarised(lines, []).notes


def test_raises_where_no_kernel_was_recorded(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no kernel"):
        summarised(["==ERROR== nothing"], [])
    with pytest.raises(ProfileError, match="ERR_NVGPUCTRPERM"):
        read(tmp_path)


def test_command_keeps_clocks_and_exports_a_report(tmp_path: Path) -> None:
    line = command(["sh", "-c", "true"], tmp_path)
    assert line[0] == "ncu"
    assert line[line.index("--clock-control") + 1] == "none"
    assert line[line.index("--export") + 1] == str(tmp_path / "profile")
    assert "dram__bytes.sum" in line[line.index("--metrics") + 1]
    assert line[-3:] == ["sh", "-c", "true"]
