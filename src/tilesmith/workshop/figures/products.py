"""Matrix products: tiles, order, pipelining, tuning."""

from __future__ import annotations

from tilesmith.workshop.figures.drawing import Drawing, Figure


def tiles() -> Figure:
    steps = []
    for step in range(4):
        drawing = Drawing().text(60, 88, "a").text(250, 12, "b").text(250, 196, "out")
        drawing.grid(20, 100, 3, 4, lambda r, c: "0" if (r, c) == (1, step) else "plain", size=24)  # noqa: B023  # drawn at once
        drawing.grid(200, 18, 4, 4, lambda r, c: "1" if (r, c) == (step, 2) else "plain", size=20)  # noqa: B023  # drawn at once
        drawing.grid(200, 106, 3, 4, lambda r, c: "3" if (r, c) == (1, 2) else "plain", size=(20, 24))
        drawing.arrow(20 + 24 * step + 24, 136, 238, 142).arrow(250, 18 + 20 * step + 20, 250, 128)
        steps.append(
            (drawing, f"Step {step}: tile {step} of a's band times tile {step} of b's band, added to one accumulator.")
        )
    return Figure("One tile of the product walks along a band of a and a band of b.", steps)


def tile_order() -> Figure:
    steps = []
    for grouped in (False, True):
        for done in (4, 8):
            drawing = Drawing().text(180, 14, "groups of two rows" if grouped else "row by row")

            def number(r: int, c: int, grouped: bool = grouped) -> int:
                return 8 * (r // 2) + 2 * c + r % 2 if grouped else 4 * r + c

            running = {(r, c) for r in range(4) for c in range(4) if done - 4 <= number(r, c) < done}
            drawing.grid(128, 26, 4, 4, lambda r, c: "0" if (r, c) in running else "plain", number, 26)  # noqa: B023  # drawn at once
            bands = (len({r for r, _ in running}), len({c for _, c in running}))
            drawing.text(
                180,
                150,
                f"{bands[0]} band{'s' * (bands[0] > 1)} of a + {bands[1]} bands of b",
                "good" if grouped else "bad",
            )
            steps.append(
                (drawing, f"The four programs {done - 4} to {done - 1} run together and load {sum(bands)} bands.")
            )
    return Figure("Programs that run together share bands of a and b; groups share more.", steps)


def pipeline() -> Figure:
    steps = []
    for stages in (1, 2, 3):
        drawing = Drawing().left(4, 14, f"num_stages = {stages}", "code")
        free = [0] * stages
        dot_end = 0
        for number in range(4):
            start = free[number % stages]
            begin = max(start + 3, dot_end)
            dot_end = begin + 2
            free[number % stages] = dot_end
            y = 24 + 28 * (number % stages)
            drawing.box(10 + 16 * start, y, 47, 22, "5", f"load {number}").box(
                10 + 16 * begin, y, 31, 22, "3", f"dot {number}"
            )
        drawing.line(10 + 16 * dot_end, 20, 10 + 16 * dot_end, 108, "good").text(
            10 + 16 * dot_end, 122, f"{dot_end} units"
        )
        said = (
            "load, wait, multiply, and again" if stages == 1 else f"{stages} buffers: loads run ahead of the products"
        )
        steps.append((drawing, f"A load takes 3 units of time, a product 2. Four steps take {dot_end}: {said}."))
    return Figure("A loop of loads and products with one, two and three stages.", steps)


def tuning() -> Figure:
    steps = []
    calls = (("(128, 128)", True), ("(128, 128)", False), ("(4096, 128)", True))
    for number, (key, tunes) in enumerate(calls):
        drawing = Drawing().left(10, 22, f"call {number + 1}, key {key}", "code")
        for candidate in range(4):
            kept = candidate == (2 if number < 2 else 0)
            kind = ("good" if kept else "1") if tunes else "good" if kept else "dim"
            drawing.box(10 + 86 * candidate, 36, 80, 26, kind, f"candidate {candidate}")
        drawing.text(
            180,
            84,
            "every candidate is timed" if tunes else "the remembered candidate runs",
            "bad" if tunes else "good",
        )
        said = (
            "A new key: all candidates run many times, and the fastest (green) is kept."
            if tunes
            else "A known key: no tuning."
        )
        steps.append((drawing, said))
    return Figure("An autotuner tries all candidates for a new key, and remembers the fastest.", steps)


def every_size() -> Figure:
    steps = []
    for size, tile in ((32, 64), (128, 16), (128, 64)):
        drawing = Drawing()
        count = max(1, size // tile)
        side = 128 / count
        drawing.grid(20, 14, count, count, lambda r, c: str((r * count + c) % 4), size=side)  # noqa: B023  # drawn at once
        busy = min(4, count * count)
        for unit in range(4):
            drawing.box(200, 24 + 28 * unit, 130, 22, str(unit) if unit < busy else "dim", f"multiprocessor {unit}")
        loads = max(1, size // tile)
        programs = f"{count * count} program{'s' * (count > 1)}"
        times = "once" if loads == 1 else f"{loads} times"
        caption = f"{size} × {size} in tiles of {tile}: {programs}, each element of a loaded {times}."
        steps.append((drawing, caption))
    return Figure("Three tile sizes on a GPU with four multiprocessors.", steps)


def persistent() -> Figure:
    steps = []
    for wave in range(4):
        drawing = Drawing()
        for program in range(4):
            drawing.left(4, 28 + 30 * program, f"program {program}")
            for tile in range(4):
                kind = str(program) if tile == wave else "plain" if tile < wave else "dim"
                drawing.box(90 + 62 * tile, 14 + 30 * program, 58, 22, kind, f"tile {4 * tile + program}")
        said = "starts" if wave == 0 else "goes on without a new start"
        steps.append((drawing, f"Round {wave}: each program {said}, with tile program + {4 * wave}."))
    return Figure("Four programs that stay go through sixteen tiles.", steps)


def roof_by_size() -> Figure:
    drawing = Drawing().line(40, 20, 40, 150).line(40, 150, 344, 150)
    drawing.line(40, 150, 170, 40, "good").line(170, 40, 344, 40, "good")
    for x, y, label in (
        (62, 136, "one token"),
        (110, 118, "256"),
        (150, 96, "512"),
        (216, 62, "1024"),
        (286, 48, "4096"),
    ):
        drawing.box(x - 4, y - 4, 8, 8, "1").left(x + 8, y + 4, label, "quiet")
    drawing.text(250, 30, "roof", "good").text(200, 166, "operations per byte →", "quiet")
    drawing.left(44, 14, "TFLOP/s", "quiet")
    return Figure(
        "Products of different sizes under the roofline.",
        [(drawing, "Thin products lie under the slope, large squares near the flat roof; between them there is room.")],
    )
