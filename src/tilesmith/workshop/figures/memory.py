"""Sectors, lanes, transposes, banks and vector width."""

from __future__ import annotations

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
