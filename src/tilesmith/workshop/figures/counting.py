"""Scans, histograms, selections and sparse rows."""

from __future__ import annotations

from itertools import accumulate

from tilesmith.workshop.figures.drawing import Drawing, Figure

_BLOCKS = ([3, 1, 4], [1, 5, 9], [2, 6, 5])


def prefix_scan() -> Figure:
    totals = [sum(block) for block in _BLOCKS]
    before = [0, *accumulate(totals)]
    steps = []
    for step in (1, 2):
        drawing = Drawing().left(4, 24, "x")
        for number, block in enumerate(_BLOCKS):
            x, kind = 52 + 104 * number, str(number)
            drawing.cells(x, 10, block, kind, 32)
            drawing.arrow(x + 48, 32, x + 48, 46).cells(x, 48, list(accumulate(block)), kind, 32)
            drawing.box(x + 64, 84, 32, 20, "mark", str(totals[number])).arrow(x + 80, 69, x + 80, 83)
            if step > 1:
                drawing.text(x + 32, 98, f"+ {before[number]}", "code")
                scanned = [before[number] + one for one in accumulate(block)]
                drawing.arrow(x + 48, 106, x + 48, 122).cells(x, 124, scanned, kind, 32)
        drawing.left(4, 62, "scans").left(4, 98, "totals")
        if step > 1:
            drawing.left(4, 138, "result")
        drawing._reach(148)
        steps.append(drawing)
    captions = (
        "First launch: each program scans its block, and stores the total.",
        "Second launch: each program adds the totals of all blocks before its own.",
    )
    return Figure("A prefix sum in two launches.", list(zip(steps, captions, strict=True)))


def histogram() -> Figure:
    queue, private = Drawing(), Drawing()
    values = ([0, 2, 2, 1], [2, 2, 0, 2])
    for drawing in (queue, private):
        for number, block in enumerate(values):
            drawing.cells(24 + 176 * number, 10, block, str(number), 34)
        drawing.left(4, 162, "bins").cells(96, 148, ["0: 2", "1: 1", "2: 5"], ["plain", "plain", "mark"], 60)
    for number, block in enumerate(values):
        for lane, value in enumerate(block):
            hot = value == 2
            queue.arrow(41 + 176 * number + 34 * lane, 32, 126 + 60 * value, 146, "bad" if hot else "line")
        x = 40 + 176 * number
        counted = [block.count(value) for value in range(3)]
        private.arrow(x + 48, 32, x + 48, 52).cells(x, 56, counted, str(number), 34)
        private.text(x + 50, 92, "counted privately", "quiet")
        private.arrow(x + 48, 98, 180 - 30 + 60 * number, 144)
    queue.text(180, 190, "5 atomics queue at one address", "bad")
    private.text(180, 190, "1 atomic per bin and program", "good")
    return Figure(
        "A histogram with an atomic per element, and with private counts.",
        [
            (queue, "One atomic per element: those on the same address happen one after another."),
            (private, "Each program counts its block first, and then adds its counts once."),
        ],
    )


def top_k() -> Figure:
    row: list[int | None] = [4, 9, 2, 9, 7, 1]
    steps = []
    taken: list[int] = []
    for rank in range(3):
        best = max(range(6), key=lambda column: row[column] or -1)
        labels = ["−∞" if one is None else str(one) for one in row]
        kinds = ["mark" if column == best else "dim" if row[column] is None else "0" for column in range(6)]
        drawing = Drawing().left(4, 24, "row").cells(50, 10, labels, kinds, 48)
        drawing.arrow(74 + 48 * best, 32, 74 + 48 * rank, 76)
        value = row[best]
        assert value is not None
        taken.append(value)
        drawing.left(4, 94, "top 3").cells(50, 80, taken, "good", 48)
        drawing._reach(108)
        said = ("The largest element; of two equal ones, the first.", "It is replaced by −∞: the other 9 is next.")
        steps.append((drawing, f"Rank {rank}: {(*said, 'The search goes on in registers.')[rank]}"))
        row[best] = None
    return Figure("The three largest elements of a row, one after another.", steps)


def sparse_rows() -> Figure:
    matrix = ([0, 5, 0, 2], [0, 0, 7, 0], [0, 0, 0, 0], [1, 4, 0, 3])
    starts = [0, *accumulate(sum(1 for one in row if one) for row in matrix)]
    owners = [row for row, line in enumerate(matrix) for one in line if one]
    values = [one for line in matrix for one in line if one]
    columns = [column for line in matrix for column, one in enumerate(line) if one]
    steps = []
    for row in range(4):
        drawing = Drawing()
        drawing.grid(
            10, 20, 4, 4,
            lambda r, c: str(r) if matrix[r][c] and r == row else "plain" if matrix[r][c] else "dim",  # noqa: B023
            lambda r, c: matrix[r][c] or "", 24,
        )  # fmt: skip
        kinds = [str(row) if owner == row else "plain" for owner in owners]
        drawing.left(126, 34, "starts").cells(
            180, 20, starts, ["mark" if one in (row, row + 1) else "plain" for one in range(5)], 28
        )
        drawing.left(126, 68, "columns").cells(180, 54, columns, kinds, 28)
        drawing.left(126, 102, "values").cells(180, 88, values, kinds, 28)
        first, end = starts[row], starts[row + 1]
        count = end - first
        said = f"{count} element{'s' if count > 1 else ''}" if count else "no element, and its result is 0"
        steps.append((drawing, f"Program {row} takes row {row}: starts {first} and {end}, so {said}."))
    return Figure("A sparse matrix and its three arrays.", steps)
