"""Scans, histograms, selections and sparse rows."""

from __future__ import annotations

from itertools import accumulate

from tilesmith.workshop.figures.drawing import Drawing, Figure

_BLOCKS = ([3, 1, 4], [1, 5, 9], [2, 6, 5])


def prefix_scan() -> Figure:
    totals = [sum(block) for block in _BLOCKS]
    before = [0, *accumulate(totals)]
    steps = []
    for step in range(3):
        drawing = Drawing().left(4, 24, "x")
        for number, block in enumerate(_BLOCKS):
            x, kind = 52 + 104 * number, str(number)
            drawing.cells(x, 10, block, kind, 32)
            if step > 0:
                drawing.arrow(x + 48, 32, x + 48, 46).cells(x, 48, list(accumulate(block)), kind, 32)
                drawing.box(x + 64, 84, 32, 20, "mark", str(totals[number]))
                drawing.arrow(x + 80, 69, x + 80, 83)
            if step > 1:
                drawing.text(x + 32, 98, f"+ {before[number]}", "code")
                scanned = [before[number] + one for one in accumulate(block)]
                drawing.arrow(x + 48, 106, x + 48, 122).cells(x, 124, scanned, kind, 32)
        if step > 0:
            drawing.left(4, 62, "scans").left(4, 98, "totals")
        if step > 1:
            drawing.left(4, 138, "result")
        drawing._reach(148)
        steps.append(drawing)
    captions = (
        "Three blocks, one program each.",
        "First launch: each program scans its block, and stores the total.",
        "Second launch: each program adds the totals of all blocks before its own.",
    )
    return Figure("A prefix sum in two launches.", list(zip(steps, captions, strict=True)))
