"""`time_ms` is called with work of known length on a GPU with its own clock."""

import random

from tilesmith.workshop.checking.pretended_gpu import LAUNCH_MS, PretendedGpu
from tilesmith.workshop.checking.program_check import Wrong

COMPILING, SETTLING, DISTURBED, LUCKY = 300.0, 4.0, 9.0, 0.8


class Work:
    """Work on the pretended GPU: the first calls are slow, then every third run is disturbed, and some are fast."""

    def __init__(self, gpu, milliseconds):
        self.gpu, self.milliseconds, self.calls = gpu, milliseconds, 0

    def __call__(self):
        self.calls += 1
        self.gpu.launch(self._length())

    def _length(self):
        if self.calls <= 3:
            return COMPILING if self.calls == 1 else SETTLING * self.milliseconds
        if self.calls % 3 == 0:
            return DISTURBED * self.milliseconds
        return LUCKY * self.milliseconds if self.calls % 5 == 0 else self.milliseconds


def timed(program, milliseconds, runs):
    gpu = PretendedGpu()
    work = Work(gpu, milliseconds)
    with gpu.in_torch():
        found = program.time_ms(work, runs)
    return found, work, gpu


def check_result(program):
    drawn = (round(random.uniform(0.1, 9), 3), random.randrange(5, 15, 2))
    for milliseconds, runs in ((2.0, 5), (0.5, 11), (0.02, 7), drawn):
        found, work, _ = timed(program, milliseconds, runs)
        asked = f"time_ms(work, runs={runs})"
        if not isinstance(found, int | float):
            raise Wrong(f"{asked} returns {found!r}, but a number of milliseconds is wanted.")
        if work.calls == 0:
            raise Wrong(f"{asked} never calls work().")
        if abs(found - milliseconds) > 1e-6 * milliseconds:
            raise Wrong(
                f"{asked} returns {found:.4g} ms for work that takes {milliseconds:g} ms on the "
                f"GPU.\n{reason(found, milliseconds, runs)}"
            )
        if work.calls < runs + 3:
            raise Wrong(
                f"{asked} calls work() {work.calls} times: {runs} runs and WARM_UP calls before them are wanted."
            )


def reason(found, milliseconds, runs):
    if abs(found - LUCKY * milliseconds) < 1e-6:
        return "The fastest run was lucky. Return the median of all runs."
    if found < milliseconds:
        return "The clock was read before the work was done. Only events, or a wait, see the time of the GPU."
    if found - milliseconds < 2 * LAUNCH_MS:
        return "The result contains the launch: the GPU was idle when the run began. Record all events, then wait once."
    if found >= COMPILING / runs or found > DISTURBED * milliseconds:
        return "The first calls, which compile, are part of the result. Call work() a few times before the first event."
    if abs(found - SETTLING * milliseconds) < 1e-6:
        return "The second and third call are still slow: warm up with WARM_UP calls."
    return (
        "Some runs are disturbed by other programs and take longer. A mean, or one pair of events around all runs, "
        "counts them in full; the median of single runs does not."
    )


def check_uses_events(program):
    _, few, gpu = timed(program, 1.0, 5)
    if gpu.events < 6:
        raise Wrong(
            f"time_ms(work, runs=5) creates {gpu.events} events, but every run needs one before and one after it."
        )
    _, more, _ = timed(program, 1.0, 11)
    if more.calls - few.calls != 6:
        raise Wrong(f"time_ms calls work() {few.calls} times with runs=5, and {more.calls} times with runs=11.")


def measure(program):
    _, work, gpu = timed(program, 1.0, 5)
    return {"waits": gpu.waits, "calls": work.calls}
