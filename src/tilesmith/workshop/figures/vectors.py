"""Programs, blocks, masks, strides and tiles."""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.workshop.figures.drawing import Drawing, Figure


def vector_add() -> Figure:
    steps = []
    for program in range(4):
        drawing = Drawing()
        for y, name in ((10, "x"), (40, "y"), (92, "out")):
            drawing.left(2, y + 14, name, "code")
            kinds = [str(cell // 4) if cell // 4 == program else "plain" for cell in range(16)]
            drawing.cells(34, y, [""] * 16, kinds)
        middle = 34 + program * 80 + 40
        drawing.text(middle, 79, "load, add, store").arrow(middle - 46, 62, middle - 46, 90)
        for number in range(4):
            drawing.text(74 + 80 * number, 128, f"program {number}", "" if number == program else "quiet")
        first = 4 * program
        steps.append(
            (
                drawing,
                f"Program {program} handles elements {first} to {first + 3}: program · BLOCK_SIZE + arange(0, 4).",
            )
        )
    return Figure("Four programs, each adds one block of four elements of two vectors.", steps)


def masks() -> Figure:
    steps = []
    for program in range(3):
        drawing = Drawing().left(2, 24, "x", "code")
        for cell in range(12):
            inside, mine = cell < 10, cell // 4 == program
            kind = ("bad" if mine else "dim") if not inside else str(program) if mine else "plain"
            drawing.box(30 + 27 * cell, 10, 26, 22, kind, str(cell) if inside else "✗")
        drawing.left(2, 64, "mask", "code")
        for lane in range(4):
            offset = 4 * program + lane
            drawing.box(30 + 27 * offset, 50, 26, 22, "good" if offset < 10 else "bad", str(int(offset < 10)))
        drawing.line(30 + 27 * 10 - 0.5, 4, 30 + 27 * 10 - 0.5, 84, "bad").text(316, 96, "not ours", "bad")
        said = "all lanes on" if program < 2 else "lanes 10 and 11 masked off: memory behind the vector is never read"
        steps.append((drawing, f"Program {program}, offsets < 10: {said}."))
    return Figure("A vector of ten elements and blocks of four: the last block is masked.", steps)


def block_size() -> Figure:
    steps = []
    for block in (2, 4, 8, 16):
        drawing = Drawing()
        programs = -(-18 // block)
        for cell in range(programs * block):
            row, column = divmod(cell, 20)
            kind = str(cell // block % 6) if cell < 18 else "dim"
            drawing.box(10 + 17 * column, 12 + 24 * row, 16, 20, kind)
        wasted = programs * block - 18
        drawing.left(10, 76, f"{programs} programs, {wasted} masked lanes")
        width = min(block // 2, 4)
        drawing.left(10, 96, f"one instruction of a thread moves {4 * width} bytes", "quiet")
        caption = (
            f"BLOCK_SIZE = {block} for 18 elements and 2 threads: {programs} programs to start, {wasted} lanes idle."
        )
        steps.append((drawing, caption))
    return Figure("The same vector in blocks of 2, 4, 8 and 16 elements.", steps)


def two_dimensional_tiles() -> Figure:
    steps = []
    for row in range(2):
        for column in range(2):
            drawing = Drawing().text(190, 12, "program_id(1)", "quiet").left(2, 80, "program_id(0)", "quiet")

            def kind(r: int, c: int, row: int = row, column: int = column) -> str:
                return str(2 * row + column) if (r // 3, c // 5) == (row, column) else "plain"

            drawing.grid(90, 36, 6, 10, kind)
            drawing.text(140, 29, "0").text(240, 29, "1").text(80, 70, "0").text(80, 130, "1")
            drawing.frame(89 + 100 * column, 35 + 60 * row, 101, 61)
            start = f"rows from {row} · ROWS, columns from {column} · COLUMNS"
            steps.append((drawing, f"Program ({row}, {column}) takes a tile: {start}."))
    return Figure("A matrix divided into four tiles, one per program of a two-dimensional grid.", steps)


def strides() -> Figure:
    views: tuple[tuple[str, int, int, Callable[[int, int], int], str], ...] = (
        ("x, strides (4, 1)", 3, 4, lambda r, c: 4 * r + c, "Rows follow each other in memory."),
        (
            "x[:, :2], strides (4, 1)",
            3,
            2,
            lambda r, c: 4 * r + c,
            "Two elements lie between the end of a row and the next.",
        ),
        (
            "x.t(), strides (1, 4)",
            4,
            3,
            lambda r, c: r + 4 * c,
            "The same memory: a step to the right jumps four elements.",
        ),
        ("x[:1].expand(3, 4), strides (0, 1)", 3, 4, lambda r, c: c, "One row, seen three times: the row stride is 0."),
    )
    steps = []
    for name, rows, columns, offset, caption in views:
        drawing = Drawing().left(10, 14, name, "code")
        drawing.grid(130, 24, rows, columns, lambda r, c: str(r), offset, 24)  # drawn at once
        used = {offset(r, c): str(r) for r in reversed(range(rows)) for c in range(columns)}
        drawing.left(10, 140, "memory", "quiet")
        drawing.cells(60, 146, list(range(12)), [used.get(place, "dim") for place in range(12)], 24)
        steps.append((drawing, caption))
    return Figure("Four views of the same memory, with their strides.", steps)


def silu() -> Figure:
    drawing = Drawing()
    drawing.box(10, 20, 80, 26, "5", "x, float16").arrow(92, 33, 126, 33).text(109, 26, "load", "quiet")
    drawing.box(130, 10, 100, 46, "0", "float32").text(180, 72, "x · σ(x)", "code")
    drawing.arrow(232, 33, 264, 33).text(248, 26, "store", "quiet").box(268, 20, 82, 26, "5", "y, float16")
    drawing.text(180, 98, "2 bytes in, 2 bytes out, arithmetic in 4 bytes", "quiet")
    return Figure(
        "A half-precision element becomes float32 in registers and is rounded at the store.",
        [(drawing, "Half precision in memory, float32 in registers: the result is rounded once, at the store.")],
    )


def reduction() -> Figure:
    steps = []
    values = [3, 1, 4, 1, 5, 9, 2, 6]
    for level in range(4):
        drawing = Drawing()
        row = values
        for depth in range(level + 1):
            gap = 40 * 2**depth
            for index, value in enumerate(row):
                x = 10 + gap * (index + 0.5) - 15
                drawing.box(x, 10 + 42 * depth, 30, 20, str(depth), str(value))
                if depth < level:
                    to = 10 + 2 * gap * (index // 2 + 0.5)
                    drawing.arrow(x + 15, 31 + 42 * depth, to, 51 + 42 * depth)
            row = [row[index] + row[index + 1] for index in range(0, len(row) - 1, 2)]
        drawing._reach(160)
        said = (
            "Eight parts of a sum.",
            "Neighbours add: four sums.",
            "Again: two sums.",
            "Three steps for eight numbers.",
        )
        steps.append((drawing, said[level]))
    race = Drawing()
    for y, program, value in ((20, 0, 5), (60, 1, 7)):
        race.left(4, y + 14, f"program {program}")
        for x, text in ((70, "read 0"), (160, f"add {value}"), (250, f"write {value}")):
            race.box(x + 8 * program, y, 76, 20, str(program), text)
    race.text(180, 106, "total = 7: the 5 is lost", "bad")._reach(160)
    steps.append(
        (race, "Between programs there is no order: both read 0, and one sum is lost. tl.atomic_add cannot lose it.")
    )
    return Figure("A reduction tree inside a program, and a race between programs.", steps)
