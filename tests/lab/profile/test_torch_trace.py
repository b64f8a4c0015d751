"""Reading Chrome traces of PyTorch's profiler, with Kineto's names of categories and arguments."""

from typing import Any

import pytest

from tilesmith.lab.profile.summary import busy_percent
from tilesmith.lab.profile.torch_trace import summarised


def event(category: str, name: str, start: float, duration: float, *, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": duration, "args": args}


def test_reads_kernels_launches_and_idle_time() -> None:
    summary = summarised(
        [
            {"ph": "M", "name": "process_name", "pid": 7},
            event("cpu_op", "aten::add", 0, 50),
            event("cuda_runtime", "cudaLaunchKernel", 5, 4),
            event("cuda_driver", "cuLaunchKernelEx", 20, 6),
            event("cuda_runtime", "cudaMalloc", 30, 1000),
            event("kernel", "add_kernel", 100, 30, tid=9, **{"est. achieved occupancy %": 100}),
            event("kernel", "add_kernel", 140, 10, tid=9, **{"est. achieved occupancy %": 20}),
            event("kernel", "softmax", 190, 10, tid=9),
        ],
        [],
    )
    assert summary.what == "kernels"
    add, softmax = summary.entries
    assert (add.name, add.calls, add.total_us) == ("add_kernel", 2, 40)
    assert add.occupancy_percent == pytest.approx(80)
    assert softmax.occupancy_percent is None
    assert summary.launches == 2
    assert summary.launch_us == 5
    assert summary.busy_percent == pytest.approx(50)
    assert any("does not measure bandwidth" in note for note in summary.notes)


def test_cpu_operators_show_self_time() -> None:
    summary = summarised(
        [
            event("cpu_op", "aten::linear", 0, 100),
            event("cpu_op", "aten::mm", 10, 60),
            event("cpu_op", "aten::copy_", 20, 15),
            event("cpu_op", "aten::mm", 200, 40),
            event("cpu_op", "aten::mm", 50, 8, tid=2),  # at the same time, on another thread
        ],
        [],
    )
    times = {entry.name: (entry.calls, entry.total_us) for entry in summary.entries}
    assert times == {"aten::linear": (1, 40), "aten::mm": (3, 45 + 40 + 8), "aten::copy_": (1, 15)}
    assert summary.busy_percent is None


@pytest.mark.parametrize(
    ("intervals", "percent"),
    [
        ([], None),
        ([(0, 10)], 100),
        ([(0, 10), (5, 20)], 100),
        ([(0, 10), (2, 3), (30, 40)], 50),
        ([(30, 40), (0, 10)], 50),
    ],
)
def test_busy_percent_counts_overlaps_once(intervals: list[tuple[float, float]], percent: float | None) -> None:
    assert busy_percent(intervals) == percent
