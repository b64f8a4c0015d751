"""`summarise` reads traces that the check writes in the format of rocprofv3."""

import csv
import io
import random
import tempfile
from pathlib import Path

from tilesmith import storage
from tilesmith.workshop.checking.program_check import Wrong

COLUMNS = (
    "Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name",
    "Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size", "Scratch_Size", "VGPR_Count",
    "Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z",
    "Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z",
)  # fmt: skip
NORM, GEMM = "rms_norm_kernel", "matmul_kernel.kd<int, float>, v2"
# name, start and end in ns, workgroup, grid in threads
TRACES = {
    "one after another": [
        (NORM, 1_000, 3_000, (256, 1, 1), (1024, 1, 1)),
        (GEMM, 5_000, 15_000, (128, 1, 1), (640, 4, 1)),
        (NORM, 15_000, 18_000, (256, 1, 1), (1024, 1, 1)),
    ],
    "lines in another order": [
        (GEMM, 9_000, 19_000, (64, 2, 1), (256, 8, 3)),
        (NORM, 1_000, 4_000, (100, 1, 1), (1030, 1, 1)),
    ],
    "two streams that overlap": [
        (GEMM, 2_000, 12_000, (256, 1, 1), (512, 1, 1)),
        (NORM, 4_000, 5_000, (64, 1, 1), (64, 1, 1)),
        (NORM, 6_000, 7_000, (64, 1, 1), (64, 1, 1)),
        (NORM, 14_000, 25_500, (64, 1, 1), (64, 1, 1)),
    ],
}


def drawn():
    """Return a trace of one stream that no program can know."""
    clock, found = random.randrange(10_000), []
    for _ in range(random.randrange(4, 9)):
        start = clock + random.randrange(0, 3_000)
        clock = start + random.randrange(100, 9_000)
        found.append((random.choice([NORM, GEMM]), start, clock))
    of_gemm = random.choice([((64, 1, 1), (640, 2, 1)), ((96, 2, 1), (960, 4, 1))])
    shapes = {NORM: ((256, 1, 1), (1024, 1, 1)), GEMM: of_gemm}
    return [(*one, *shapes[one[0]]) for one in found]


def written(dispatches, folder):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, restval="0", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for number, (name, start, end, group, grid) in enumerate(dispatches, 1):
        sizes = {f"Workgroup_Size_{axis}": side for axis, side in zip("XYZ", group, strict=True)}
        sizes |= {f"Grid_Size_{axis}": side for axis, side in zip("XYZ", grid, strict=True)}
        times = {"Start_Timestamp": start, "End_Timestamp": end}
        writer.writerow({"Kind": "KERNEL_DISPATCH", "Kernel_Name": name, "Dispatch_Id": number, **times, **sizes})
    path = Path(folder) / "kernel_trace.csv"
    storage.write_atomically(path, text.getvalue())
    return path


def wavefronts(group, grid):
    threads, groups = 1, 1
    for side, length in zip(group, grid, strict=True):
        threads *= side
        groups *= -(-length // side)
    return -(-threads // 64) * groups


def idle(dispatches):
    spans = sorted((start, end) for _, start, end, *_ in dispatches)
    busy, latest = 0, 0
    for start, end in spans:
        busy += max(0, end - max(start, latest))
        latest = max(latest, end)
    return 1 - busy / (latest - spans[0][0])


def check_summaries(program):
    for what, dispatches in {**TRACES, "a new one": drawn()}.items():
        with tempfile.TemporaryDirectory() as folder:
            found = program.summarise(written(dispatches, folder))
        if not hasattr(found, "kernels") or not hasattr(found, "idle"):
            raise Wrong(f"summarise returns {found!r}, but a Summary of kernels and idle is wanted.")
        require_kernels(what, dispatches, found.kernels)
        wanted = idle(dispatches)
        if abs(found.idle - wanted) > 1e-9:
            raise Wrong(
                f"trace “{what}”: idle is {found.idle:.4g}, but no kernel runs in {wanted:.4g} of the time "
                "from the first "
                "start to the last end. Kernels may lie in any order, and may overlap: compare with the "
                "latest end so far."
            )


def require_kernels(what, dispatches, kernels):
    names = {name for name, *_ in dispatches}
    if {one.name for one in kernels} != names or len(kernels) != len(names):
        raise Wrong(
            f"trace “{what}”: the table has the kernels {[one.name for one in kernels]}, but "
            f"{sorted(names)} are wanted."
        )
    total = sum(end - start for _, start, end, *_ in dispatches)
    for one in kernels:
        mine = [dispatch for dispatch in dispatches if dispatch[0] == one.name]
        nanoseconds = sum(end - start for _, start, end, *_ in mine)
        wanted = {
            "calls": len(mine),
            "microseconds": nanoseconds / 1000,
            "share": nanoseconds / total,
            "wavefronts": wavefronts(*mine[0][3:]),
        }
        for field, value in wanted.items():
            if abs(getattr(one, field) - value) > 1e-9:
                raise Wrong(
                    f"trace “{what}”: {field} of {one.name} is {getattr(one, field):.6g}, but {value:.6g} "
                    f"is wanted.\n{LESSONS[field]}"
                )
    if [one.microseconds for one in kernels] != sorted((one.microseconds for one in kernels), reverse=True):
        raise Wrong(f"trace “{what}”: the slowest kernel comes first.")


LESSONS = {
    "calls": "Each line of the trace is one dispatch.",
    "microseconds": "The timestamps are in nanoseconds. Add up all dispatches of a kernel.",
    "share": "The share of the time of all kernels, not of the whole run.",
    "wavefronts": (
        "Grid_Size counts threads: divide by Workgroup_Size, rounded up, on each axis. A workgroup has "
        "ceil(threads / 64) wavefronts, and its threads are the product of three sides."
    ),
}
