"""Reading Proton's tree as Triton 3.6 to 3.9 write it with `data="tree"`: calls first, devices second."""

from pathlib import Path
from typing import Any

import pytest

from tilesmith.lab.profile.proton_tree import read, summarised
from tilesmith.lab.profile.summary import ProfileError


def node(name: str, *children: dict[str, Any], **metrics: Any) -> dict[str, Any]:
    return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": list(children)}


DEVICES = {"CUDA": {"0": {"arch": "90", "bus_width": 6144, "memory_clock_rate": 3201000, "num_sms": 132}}}


def test_sums_a_kernel_over_all_call_sites() -> None:
    time, moved = "time (ns)", "bytes"
    tree = [
        node(
            "ROOT",
            node("forward", node("norm", **{time: 60_000, "count": 2, moved: 240_000_000})),
            node("norm", **{time: 40_000, "count": 1, moved: 160_000_000}),
            node("fill", **{time: 1_000, "count": 5}),
        ),
        DEVICES,
    ]
    summary = summarised(tree, [])
    norm, fill = summary.entries
    assert (norm.name, norm.calls, norm.total_us) == ("norm", 3, 100)
    assert norm.tb_per_s == pytest.approx(4.0)
    assert (fill.calls, fill.tb_per_s) == (5, None)
    assert summary.launches == 8
    assert not summary.notes


def test_notes_how_to_get_bandwidth_without_byte_counts() -> None:
    tree = [node("ROOT", node("norm", **{"time (ns)": 10, "count": 1})), DEVICES]
    assert "launch_metadata" in summarised(tree, []).notes[0]


def test_raises_without_a_profile(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="wrote no profile"):
        read(tmp_path)
