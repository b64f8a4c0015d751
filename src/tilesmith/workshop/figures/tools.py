"""Measuring, tuning, debugging and graphs."""

from __future__ import annotations

from tilesmith.workshop.figures.drawing import Drawing, Figure


def roofline() -> Figure:
    drawing = Drawing().line(40, 20, 40, 150).line(40, 150, 340, 150)
    drawing.line(40, 150, 190, 40, "good").line(190, 40, 340, 40, "good")
    drawing.text(100, 62, "memory-bound", "quiet").text(270, 32, "compute-bound", "quiet")
    drawing.box(86, 122, 8, 8, "1").text(140, 132, "this kernel", "").arrow(90, 120, 90, 116, "bad")
    drawing.text(190, 166, "operations per byte →", "quiet").text(56, 14, "operations per second", "quiet", "start")
    return Figure(
        "The roofline: bandwidth limits on the left, arithmetic on the right.",
        [(drawing, "The roof is what the machine can do. The distance to the roof is what there is to gain.")],
    )


def tuning_cost() -> Figure:
    fine, coarse = Drawing(), Drawing()
    for drawing, keys in ((fine, (1000, 1001, 1002, 1003)), (coarse, (1024, 1024, 1024, 1024))):
        for number, key in enumerate(keys):
            drawing.left(4, 28 + 28 * number, f"rows {1000 + number}, key {key}", "code")
            tunes = number == 0 or keys[number - 1] != key
            drawing.box(
                140, 14 + 28 * number, 170 if tunes else 12, 20, "bad" if tunes else "good", "tune" if tunes else ""
            )
    return Figure(
        "A fine key tunes on every call, a coarse key once.",
        [
            (fine, "The exact number of rows as key: every batch tunes again."),
            (coarse, "The next power of two as key: one tuning serves them all."),
        ],
    )


def graph() -> Figure:
    whole, broken = Drawing(), Drawing()
    names = ("embed", "norm", "your kernel", "linear")
    for drawing, cut in ((whole, False), (broken, True)):
        for number, name in enumerate(names):
            drawing.box(8 + 88 * number, 40, 76, 28, "3" if name == "your kernel" else "0", name)
            if number:
                drawing.arrow(
                    85 + 88 * (number - 1), 54, 95 + 88 * (number - 1), 54, "bad" if cut and number == 2 else "line"
                )
        if cut:
            drawing.frame(4, 30, 176, 48).frame(182, 30, 172, 48).text(180, 98, ".item() breaks the graph", "bad")
        else:
            drawing.frame(4, 30, 352, 48).text(180, 98, "one graph: compiled and fused as a whole", "good")
    return Figure(
        "A graph of torch.compile, whole and broken.",
        [
            (whole, "The kernel is an operator of the graph."),
            (broken, "A break: each piece is compiled alone, and the value between them goes through memory."),
        ],
    )


def interpreter() -> Figure:
    steps = []
    for program in range(3):
        drawing = Drawing()
        for number in range(3):
            kind = str(number) if number == program else "plain" if number < program else "dim"
            drawing.box(10 + 116 * number, 14, 108, 24, kind, f"program {number}")
        offsets = [4 * program + lane for lane in range(4)]
        drawing.left(10, 66, f"offsets = {offsets}", "code").left(
            10, 84, f"mask    = {[int(one < 10) for one in offsets]}", "code"
        )
        steps.append((drawing, f"Program {program} runs alone, in Python: print any block, or stop in the middle."))
    return Figure("In the interpreter, programs run one after another.", steps)


def myth() -> Figure:
    drawing = Drawing().box(10, 20, 100, 40, "2", "a claim").arrow(112, 40, 138, 40)
    drawing.box(142, 20, 90, 40, "0", "inspect").arrow(234, 40, 256, 40).box(260, 20, 92, 40, "3", "a number")
    drawing.text(186, 84, "count the sectors, registers and instructions", "quiet")
    return Figure("From a claim to a number.", [(drawing, "Do not trust the tone. Count.")])


def six_stages() -> Figure:
    drawing = Drawing()
    for number in range(6):
        drawing.box(6 + 59 * number, 40, 52, 30, str(number), str(number + 1))
        if number:
            drawing.arrow(59 * number, 55, 5 + 59 * number, 55)
    drawing.text(180, 24, "symptom → measurement → cause → fix, six times").text(
        180, 96, "one fault per stage", "quiet"
    )
    return Figure(
        "Six stages of a slow or wrong model, one fault each.",
        [(drawing, "Each stage shows a symptom. Say what you think is wrong before you look.")],
    )


def limits() -> Figure:
    steps = []
    for name, registers, shared, warps, size in (("H200", 256, 228, 64, 32), ("MI300X", 512, 64, 32, 64)):
        drawing = Drawing().left(4, 14, f"one multiprocessor of an {name}", "code")
        supplies = (
            ("registers", registers, 512, "KB"),
            ("shared memory", shared, 512, "KB"),
            ("threads", warps * size, 2048, ""),
        )
        for row, (what, amount, most, unit) in enumerate(supplies):
            y = 26 + 30 * row
            drawing.left(4, y + 14, what).box(100, y, 170 * amount / most, 20, str(row))
            drawing.left(106 + 170 * amount / most, y + 14, f"{amount:,} {unit}".strip(), "quiet")
        drawing.left(4, 130, f"{warps} warps of {size} threads", "quiet")
        steps.append((drawing, f"{name}: what all programs on one multiprocessor share."))
    return Figure("The supplies of a multiprocessor, from two vendors.", steps)


def events() -> Figure:
    steps = []
    captions = (
        "The launch returns at once: a clock on the host sees the launch, not the work.",
        "Events lie in the queue. The GPU writes its own time when it reaches them.",
    )
    for number, caption in enumerate(captions):
        drawing = Drawing().left(4, 34, "host").left(4, 84, "GPU").line(44, 100, 352, 100)
        drawing.box(50, 20, 24, 22, "0", "launch").box(84, 70, 190, 24, "3", "work")
        if number == 0:
            drawing.arrow(50, 12, 50, 20, "bad").arrow(78, 12, 78, 20, "bad").left(86, 16, "clock, clock", "bad")
        else:
            drawing.arrow(84, 116, 84, 96, "good").arrow(274, 116, 274, 96, "good")
            drawing.text(84, 130, "start", "good").text(274, 130, "end", "good")
        steps.append((drawing, caption))
    return Figure("The host's clock and the GPU's events.", steps)


def report() -> Figure:
    drawing = Drawing().line(40, 16, 40, 140).line(40, 140, 344, 140)
    drawing.text(40, 12, "GB/s", "quiet").text(300, 156, "columns, doubling →", "quiet")
    lines = {"0": (110, 84, 60, 44, 36, 34), "1": (122, 112, 104, 100, 98, 98)}
    for kind, heights in lines.items():
        for number, height in enumerate(heights):
            x = 60 + 52 * number
            drawing.line(x, height - 7, x, height + 7).box(x - 4, height - 4, 8, 8, kind)
            if number:
                drawing.line(x - 48, heights[number - 1], x - 4, height)
    drawing.left(196, 26, "one line per provider", "quiet").left(196, 126, "bars: from slow to fast", "quiet")
    return Figure(
        "A benchmark: a line for each provider over many sizes, each point with its spread.",
        [(drawing, "A rate shows what a time hides: where a kernel stops to gain, and what is left to the roof.")],
    )


def dispatches() -> Figure:
    drawing = Drawing().left(4, 34, "stream 1").left(4, 74, "stream 2").line(60, 92, 352, 92)
    for x, width, row, kind in ((64, 46, 0, "0"), (150, 90, 0, "1"), (176, 40, 1, "2"), (290, 50, 0, "0")):
        drawing.box(x, 20 + 40 * row, width, 22, kind)
    for x, width in ((110, 40), (240, 50)):
        drawing.frame(x, 14, width, 84, "bad").text(x + width / 2, 112, "idle", "bad")
    return Figure(
        "Dispatches of two streams on a time line, with two gaps.",
        [
            (
                drawing,
                "Idle is the time in which no stream runs a kernel: compare each start with the latest end so far.",
            )
        ],
    )


def portability() -> Figure:
    steps = []
    for name, supply, stages in (("H200", 228, 4), ("MI300X", 64, 3)):
        drawing = Drawing().left(4, 16, f"{name}: {supply} KB of shared memory", "code")
        drawing.frame(10, 30, 330 * supply / 228, 40)
        for stage in range(stages):
            fits = 32 * (stage + 1) <= supply
            drawing.box(12 + 46.3 * stage, 34, 42, 32, "good" if fits else "bad", "32 KB")
        drawing.left(4, 96, f"stages in shared memory: {stages}", "quiet")
        end = "they fit." if 32 * stages <= supply else "the third does not fit, and the kernel does not start."
        steps.append((drawing, f"Four stages of two tiles on {name}: {end}"))
    return Figure("The same pipeline in the shared memory of two GPUs.", steps)


def faults() -> Figure:
    names = ("first loss", "strides", "labels", "gradients", "clock")
    steps = []
    for mended in range(len(names)):
        drawing = Drawing()
        for number, name in enumerate(names):
            kind = "good" if number < mended else "bad" if number == mended else "dim"
            drawing.box(6 + 71 * number, 30, 64, 32, kind, name)
        drawing.text(180, 84, "results → gradients → time", "quiet")
        steps.append((drawing, f"Symptom {mended + 1}: {names[mended]}. Mend it, check again, go on."))
    return Figure("Five faults of one file, mended one after another.", steps)
