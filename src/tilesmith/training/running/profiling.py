"""A few steps under PyTorch's profiler: a trace for Perfetto, and a summary of the times."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from tilesmith.lab.profile.summary import Summary
from tilesmith.lab.profile.torch_trace import read
from tilesmith.training.running.run import Run

STEPS = 5


def profiled(run: Run, folder: Path) -> Summary:
    """Profile additional steps of a run; OSError where the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes messages to standard error
    has_gpu = run.place.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]) as profiler:
        for _ in range(STEPS):
            run.one_more_step()
        if has_gpu:
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(folder / "trace.json.gz"))
    return read(folder)
