"""Sectors, lanes, transposes, banks and vector width."""

from __future__ import annotations

from functools import partial

from tilesmith.workshop.figures.drawing import Drawing, Figure


def _sectors(drawing: Drawing, y: float, used: set[int]) -> Drawing:
    """Add 8 sectors of 4 elements; the used elements are green, moved but unused ones red."""
    for sector in range(8):
        moved = any(4 * sector + one in used for one in range(4))
        for one in range(4):
            kind = ("good" if 4 * sector + one in used else "bad") if moved else "plain"
            drawing.box(12 + 42 * sector + 10 * one, y, 9, 20, kind)
    return drawing


def _lanes(drawing: Drawing, y: float, targets: list[int], kind: str) -> Drawing:
    for lane, target in enumerate(targets):
        x = 60 + 30 * lane
        drawing.box(x, y, 24, 18, "0", str(lane))
        drawing.arrow(x + 12, y + 19, 12 + 42 * (target // 4) + 10 * (target % 4) + 5, y + 58, kind)
    return drawing


def transpose_by_rows(stores: bool) -> Figure:
    good, bad = Drawing(), Drawing()
    _sectors(_lanes(good.left(4, 22, "lanes"), 10, list(range(8)), "good"), 70, set(range(8)))
    good.text(180, 108, "2 sectors moved, all of their bytes used", "good")
    _sectors(
        _lanes(bad.left(4, 22, "lanes"), 10, [4 * lane for lane in range(8)], "bad"), 70, {4 * n for n in range(8)}
    )
    bad.text(180, 108, "8 sectors moved, a quarter of their bytes used", "bad")
    first, second = ("loads", "stores") if stores else ("stores", "loads")
    return Figure(
        f"A transpose whose {first} are coalesced and whose {second} are not.",
        [
            (good, f"The {first} of a warp: neighbouring lanes, neighbouring elements."),
            (bad, f"The {second}: neighbouring lanes are a whole row apart. Each needs a sector of its own."),
        ],
    )


def transpose_tiles() -> Figure:
    steps = []
    for number, (title, caption) in enumerate((
        ("load", "A tile is loaded row by row: whole sectors."),
        ("exchange", "In shared memory, rows and columns change places."),
        ("store", "The tile is stored row by row again: whole sectors on both sides."),
    )):  # fmt: skip
        drawing = Drawing().text(60, 14, "x").text(180, 14, "shared memory").text(300, 14, "out")
        lit = (
            ("0", "plain", "plain")
            if number == 0
            else ("plain", "0", "plain")
            if number == 1
            else ("plain", "plain", "0")
        )
        for x, kind, turned in ((20, lit[0], False), (140, lit[1], number > 0), (260, lit[2], True)):

            def label(r: int, c: int, turned: bool = turned) -> int:
                return 4 * c + r if turned else 4 * r + c

            drawing.grid(x, 20, 4, 4, lambda r, c: kind, label)  # noqa: B023  # drawn at once
        drawing.arrow(104, 60, 136, 60).arrow(224, 60, 256, 60).text(180, 120, title, "code")
        steps.append((drawing, caption))
    return Figure("A tile is transposed through shared memory.", steps)


def vector_width() -> Figure:
    steps = []
    for width in (1, 2, 4):
        drawing = Drawing().left(10, 16, f"{4 * width} bytes per thread and instruction")
        for cell in range(16):
            drawing.box(10 + 21 * cell, 26, 20, 20, str(cell // width % 4))
        count = 16 // width // 4
        for number in range(count):
            drawing.box(
                10, 58 + 18 * number, 336, 15, "plain", f"instruction {number + 1}: 4 threads · {4 * width} bytes"
            )
        drawing._reach(132)
        steps.append(
            (drawing, f"16 elements, 4 threads: {count} instruction{'s' if count > 1 else ''} of {4 * width} bytes.")
        )
    return Figure("The same bytes with narrow and with wide instructions.", steps)


def banks(swizzle: bool = True) -> Figure:
    """Return a figure of eight banks: columns of a tile as it lies, and also swizzled."""
    steps = []
    for swizzled in (False, True) if swizzle else (False,):
        for column in (0, 1) if swizzle else (0, 1, 2):
            drawing = Drawing()
            for bank in range(8):
                drawing.text(76 + 34 * bank, 14, str(bank), "quiet")
            drawing.left(4, 14, "bank", "quiet")
            for row in range(8):
                for bank in range(8):
                    content = bank ^ row if swizzled else bank
                    hit = content == column
                    kind = ("good" if swizzled else "bad") if hit else "plain"
                    drawing.box(60 + 34 * bank, 20 + 17 * row, 32, 15, kind, f"{row},{content}")
                drawing.left(10, 32 + 17 * row, f"lane {row}", "quiet")
            how = "column XOR row" if swizzled else "row-major"
            turns = "8 banks at once: one turn" if swizzled else "all in one bank: eight turns"
            steps.append((drawing, f"{how}: the lanes read column {column}, {turns}."))
    return Figure(
        f"A column of a tile in the banks of shared memory, row-major{' and swizzled' if swizzle else ''}.", steps
    )


def alignment() -> Figure:
    steps = []
    for start, name in ((0, "row 0 begins at byte 0"), (1, "row 1 begins at byte 514")):
        drawing = Drawing().left(10, 14, name, "code")
        kinds = [("0" if start == 0 else "bad") if start <= cell < start + 8 else "dim" for cell in range(16)]
        drawing.cells(10, 24, [""] * 16, kinds, 21)
        for group in range(2):
            drawing.frame(9 + 168 * group, 22, 167, 24)
            drawing.text(92 + 168 * group, 62, "16 bytes, aligned", "quiet")
        said = "one instruction: 8 elements" if start == 0 else "eight instructions: 1 element each"
        drawing.text(180, 88, said, "good" if start == 0 else "bad")
        steps.append(drawing)
    return Figure(
        "Eight elements at an aligned and at an unaligned address.",
        [
            (steps[0], "Eight float16 in one aligned group of 16 bytes: a thread loads them at once."),
            (steps[1], "514 is no multiple of 16: the eight elements lie in two groups, and are loaded one by one."),
        ],
    )


def three_dimensions() -> Figure:
    forms = (
        ("row-major (6, 3, 1)", (6, 3, 1), "The last index is the fast one."),
        ("column-major (6, 1, 2)", (6, 1, 2), "The row is the fast index: a step to the right jumps over a column."),
        ("gaps (8, 4, 1)", (8, 4, 1), "A slice of wider rows: one element is left out after each row."),
        ("expanded (0, 3, 1)", (0, 3, 1), "Stride 0: both matrices are the same memory."),
    )
    steps = []
    for name, strides, caption in forms:
        drawing = Drawing().left(10, 14, name, "code")
        used: dict[int, str] = {}
        for batch in reversed(range(2)):
            place = partial(_place, strides, batch)
            drawing.grid(40 + 150 * batch, 24, 2, 3, partial(_colour, batch), place, 28)
            drawing.text(82 + 150 * batch, 96, f"x[{batch}]", "quiet")
            used.update({place(row, column): _colour(batch, row, column) for row in range(2) for column in range(3)})
        drawing.left(10, 120, "memory", "quiet")
        drawing.cells(10, 126, list(range(15)), [used.get(cell, "dim") for cell in range(15)], 22)
        steps.append((drawing, caption))
    return Figure("A tensor of 2 × 2 × 3 with four sets of strides.", steps)


def _place(strides: tuple[int, int, int], batch: int, row: int, column: int) -> int:
    return batch * strides[0] + row * strides[1] + column * strides[2]


def _colour(batch: int, row: int, column: int) -> str:
    return str(2 * batch + row)
