"""The learner's profiler runs for real, on this machine's CPU, over a model that counts its own calls."""

import json
import tempfile
import time
from pathlib import Path

import torch

from tilesmith.workshop.checking.program_check import Wrong

LABELS = ("attention", "feed_forward")
STEPS, ACTIVE = 5, 3


class Model:
    """A model whose feed-forward does a hundred times the work of its attention."""

    def __init__(self):
        self.calls = dict.fromkeys(LABELS, 0)
        self.microseconds = {label: [] for label in LABELS}  # of each call, by this model's own clock
        self.seen = []

    def attention(self, x):
        start = time.perf_counter()
        self.calls["attention"] += 1
        x = x + 1
        self.microseconds["attention"].append(1e6 * (time.perf_counter() - start))
        return x

    def feed_forward(self, x):
        start = time.perf_counter()
        self.calls["feed_forward"] += 1
        self.seen.append(x)
        for _ in range(100):
            x = torch.tanh(x)
        self.microseconds["feed_forward"].append(1e6 * (time.perf_counter() - start))
        return x


def profiled(program):
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        found = program.profile_steps(model, torch.zeros(256, 256), trace)
        events = json.loads(trace.read_text())["traceEvents"] if trace.is_file() else None
    return found, events, model


def check_step(program):
    model = Model()
    x = torch.zeros(2, 2)
    result = program.step(model, x)
    if model.calls != dict.fromkeys(LABELS, 1):
        raise Wrong(f"step calls the model's parts {model.calls} times, but each must run once.")
    if not torch.equal(model.seen[0], x + 1) or not isinstance(result, torch.Tensor):
        raise Wrong("step must hand the result of attention to feed_forward, and return the result of feed_forward.")


def check_profile(program):
    found, events, model = profiled(program)
    if model.calls["attention"] != STEPS:
        raise Wrong(
            f"profile_steps runs {model.calls['attention']} steps, but WAIT + WARM_UP + ACTIVE = {STEPS} are wanted: "
            "the profiler skips the first ones, which are slow for other reasons."
        )
    if events is None:
        raise Wrong("profile_steps writes no trace: call export_chrome_trace(str(trace)) in on_trace_ready.")
    require_table(found)
    for label in LABELS:
        marks = [one for one in events if one.get("name") == label and one.get("cat") == "user_annotation"]
        if len(marks) != ACTIVE:
            raise Wrong(
                f"the trace has {len(marks)} ranges {label!r}, but {ACTIVE} active steps were to be recorded. "
                "Is profiler.step() called after every step, and is the label around the call?"
            )
        in_trace = sum(one["dur"] for one in marks)
        least = sum(model.microseconds[label][-ACTIVE:])
        if in_trace < 0.98 * least:
            raise Wrong(
                f"the ranges {label!r} of the trace take {in_trace:.0f} µs, but the model spent {least:.0f} µs in its "
                f"last {ACTIVE} calls: is the label around the call?"
            )
        if not 0.8 < found[label][1] / in_trace < 1.25:
            raise Wrong(
                f"profile_steps returns {found[label][1]:.0f} µs for {label!r}, but its {ACTIVE} ranges in "
                "the trace take "
                f"{in_trace:.0f} µs. cpu_time_total contains what runs inside of a label; self_cpu_time_total does not."
            )


def require_table(found):
    if not isinstance(found, dict):
        raise Wrong(
            f"profile_steps returns {type(found).__name__}, but a dict {{label: (calls, microseconds)}} is wanted."
        )
    if set(found) != set(LABELS):
        raise Wrong(f"profile_steps returns the keys {sorted(found)}, but {sorted(LABELS)} are wanted.")
    for label in LABELS:
        calls, microseconds = found[label]
        if calls != ACTIVE:
            raise Wrong(
                f"profile_steps returns {calls} calls of {label!r}, but the profiler records {ACTIVE} active steps."
            )
        if not microseconds > 0:
            raise Wrong(
                f"profile_steps returns {microseconds} µs for {label!r}: the time of a label is cpu_time_total."
            )
