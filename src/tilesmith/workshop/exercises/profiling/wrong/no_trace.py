# fails: right (writes no trace)
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

WAIT, WARM_UP, ACTIVE = 1, 1, 3
LABELS = ("attention", "feed_forward")


def step(model, x):
    """Run one step of a model, with a label around each of its parts."""
    with record_function("attention"):
        x = model.attention(x)
    with record_function("feed_forward"):
        x = model.feed_forward(x)
    return x


def profile_steps(model, x, trace):
    """Profile the active steps, write them to the file `trace`, and return {label: (calls, microseconds)}."""
    found = {}

    def ready(profiler):
        for event in profiler.key_averages():
            if event.key in LABELS:
                found[event.key] = (event.count, event.cpu_time_total)

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    plan = schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=1)
    with profile(activities=activities, schedule=plan, on_trace_ready=ready) as profiler:
        for _ in range(WAIT + WARM_UP + ACTIVE):
            step(model, x)
            profiler.step()
    return found
