"""Threads, blocks, barriers and copies."""

from __future__ import annotations

from tilesmith.workshop.figures.drawing import Drawing, Figure


def threads() -> Figure:
    steps = []
    for block in range(3):
        drawing = Drawing()
        for number in range(3):
            x = 14 + 114 * number
            drawing.box(x, 14, 104, 24, str(number) if number == block else "plain", f"block {number}")
            for thread in range(4):
                lit = number == block
                inside = 4 * number + thread < 10
                drawing.box(
                    x + 26 * thread, 44, 25, 20, (str(number) if inside else "bad") if lit else "plain", str(thread)
                )
                drawing.box(x + 26 * thread, 84, 25, 20, (str(number) if lit else "plain") if inside else "dim")
                if lit and inside:
                    drawing.arrow(x + 26 * thread + 12, 65, x + 26 * thread + 12, 83)
        drawing.text(180, 122, "i = blockIdx.x * blockDim.x + threadIdx.x", "code")
        said = "; the threads with i ≥ 10 return" if block == 2 else ""
        steps.append((drawing, f"Block {block}: one thread per element{said}."))
    return Figure("Threads of three blocks, one element each.", steps)


def column_copy() -> Figure:
    steps = []
    for way, caption in enumerate((
        "Element by element: one call for each row, and each call is a trip through the driver.",
        "The whole matrix: one call, but all bytes.",
        "Gathered on the CPU, or cudaMemcpy2D: one call, and only the column.",
    )):  # fmt: skip
        drawing = Drawing().text(70, 14, "host").text(300, 14, "device")
        drawing.grid(20, 22, 4, 5, lambda r, c: "0" if c == 0 or way == 1 else "plain")  # noqa: B023  # drawn at once
        drawing.grid(290, 22, 4, 5 if way == 1 else 1, lambda r, c: "0", size=(12, 20) if way == 1 else 20)
        for row in range(4) if way == 0 else (1.5,):
            drawing.arrow(126, 32 + 20 * row, 284, 32 + 20 * row, "bad" if way < 2 else "good")
        steps.append((drawing, caption))
    return Figure("Three ways to copy a column to the GPU.", steps)


def block_reduction() -> Figure:
    steps = []
    values = [3, 1, 4, 1, 5, 9, 2, 6]
    for level in range(4):
        drawing = Drawing().left(4, 14, "shared memory", "quiet")
        active = 8 >> level
        for index, value in enumerate(values):
            drawing.box(12 + 42 * index, 22, 38, 22, "0" if index < active else "plain", str(value))
        half = active // 2
        for index in range(half):
            drawing.arrow(12 + 42 * (index + half) + 19, 46, 12 + 42 * index + 19, 84)
            drawing.line(12 + 42 * index + 19, 46, 12 + 42 * index + 19, 84, "faint")
            values[index] += values[index + half]
        if half:
            for index in range(half):
                drawing.box(12 + 42 * index, 86, 38, 22, "3", str(values[index]))
            drawing.text(180, 130, "__syncthreads(): all threads, also those that do not add", "code")
        drawing._reach(136)
        caption = f"{half} threads add, then every thread waits." if half else "One number is left; thread 0 writes it."
        steps.append((drawing, caption))
    return Figure("A sum of a block through shared memory, with a barrier between the steps.", steps)


def norm_blocks(matrix: bool) -> Figure:
    rows = 3 if matrix else 1
    steps = []
    for row in range(rows):
        drawing = Drawing()
        for number in range(rows):
            drawing.left(4, 26 + 28 * number, f"block {number}", "" if number == row else "quiet")
            drawing.cells(
                60, 12 + 28 * number, [str(one % 4) for one in range(12)], str(row) if number == row else "plain", 24
            )
        y = 12 + 28 * rows
        drawing.left(60, y + 16, "thread t takes t, t + 4, t + 8, …", "quiet")
        drawing.left(60, y + 36, "sum of squares → shared memory → barrier → scale", "code")
        steps.append(
            (drawing, f"Block {row} walks along its row with a stride of blockDim.x, then all threads share one sum.")
        )
    return Figure("RMSNorm with one block per row: threads stride along the row and share a sum.", steps)


def warp_of_a_block() -> Figure:
    steps = []
    for warp in range(2):
        drawing = Drawing().text(180, 12, "threadIdx.x →", "quiet")
        drawing.grid(100, 20, 4, 8, lambda r, c: str(warp) if r // 2 == warp else "plain", lambda r, c: 8 * r + c)  # noqa: B023  # drawn at once
        drawing.left(10, 62, "threadIdx.y ↓", "quiet").text(
            180, 122, "8 × 4 threads in warps of 16 (an example)", "quiet"
        )
        steps.append(
            (
                drawing,
                f"Warp {warp}: x counts fastest, so a warp takes two rows of the block.",
            )
        )
    return Figure("How the threads of a two-dimensional block form warps.", steps)


def streams() -> Figure:
    steps = []
    for overlapped in (False, True):
        drawing = Drawing().left(4, 12, "time →", "quiet")
        for chunk in range(3):
            for step, name in enumerate(("in", "run", "out")):
                column = (0, 1, 3)[chunk] + step if overlapped else 3 * chunk + step
                row = chunk % 2 if overlapped else 0
                drawing.box(56 + 33 * column, 20 + 34 * row, 30, 24, str(chunk), name)
        for row in range(2 if overlapped else 1):
            drawing.left(4, 36 + 34 * row, f"stream {row}", "quiet")
        drawing.text(180, 106, "6 steps of time" if overlapped else "9 steps of time", "good" if overlapped else "bad")
        steps.append(drawing)
    return Figure(
        "Three chunks in one stream, and in two.",
        [
            (steps[0], "One stream: copy in, run, copy out, chunk after chunk (by colour)."),
            (steps[1], "Two streams: while a chunk is computed, the next one is on its way."),
        ],
    )


def divergence() -> Figure:
    steps = []
    for caption, passes in (
        (
            "A branch on the parity: the warp runs both sides, with half of its lanes each.",
            (("even", 0), ("odd", 1)),
        ),
        ("One thread per pair: all lanes do the same, once.", (("pair", None),)),
    ):
        drawing = Drawing().left(4, 14, "lanes 0 to 15 of a warp", "quiet")
        for number, (name, parity) in enumerate(passes):
            drawing.left(4, 42 + 34 * number, name, "code")
            kinds = ["3" if parity is None or lane % 2 == parity else "dim" for lane in range(16)]
            drawing.cells(50, 28 + 34 * number, [""] * 16, kinds, 19)
        steps.append((drawing, caption))
    return Figure("A warp with and without divergence.", steps)


def dynamic_shared() -> Figure:
    drawing = Drawing().box(8, 16, 76, 26, "0", "launch").left(92, 33, "<<<rows, threads, bytes>>>", "code")
    drawing.arrow(252, 36, 252, 62).frame(40, 64, 290, 30).cells(44, 69, list(range(14)), "3", 20)
    drawing.left(40, 112, "extern __shared__ float row[];", "code").left(
        40, 132, "one row, of any length, per block", "quiet"
    )
    return Figure(
        "Dynamic shared memory: the launch says how many bytes.",
        [
            (
                drawing,
                "The kernel does not know the length when it is compiled. The third number of the launch gives it.",
            )
        ],
    )


def unrolled() -> Figure:
    steps = []
    for caption, each in (
        ("One element per thread: 16 threads, 16 loads, each waits for itself.", 1),
        ("Four elements per thread, unrolled: 4 threads, four loads each, on their way together.", 4),
    ):
        drawing = Drawing()
        for number in range(16):
            owner = number // each
            drawing.box(8 + 21 * number, 20, 20, 22, str(owner % 6), str(owner))
        drawing.left(8, 64, "thread of each element", "quiet")
        steps.append((drawing, caption))
    return Figure("Elements per thread, one and four.", steps)
