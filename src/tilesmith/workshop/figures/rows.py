"""Norms, softmax and other work on rows."""

from __future__ import annotations

from math import exp

from tilesmith.workshop.figures.drawing import Drawing, Figure


def _row(drawing: Drawing, y: float, kinds: str | list[str] = "0", labels: list[object] | None = None) -> Drawing:
    return drawing.cells(60, y, labels or [""] * 10, kinds, 28)


def rms_norm() -> Figure:
    steps = []
    for row in range(3):
        drawing = Drawing()
        for number in range(3):
            drawing.left(4, 24 + 30 * number, f"row {number}", "" if number == row else "quiet")
            _row(drawing, 10 + 30 * number, str(row) if number == row else "plain")
        drawing.arrow(200, 98, 200, 118).text(200, 132, f"mean of x² → one number r{row}")
        drawing.text(200, 152, f"y = x · r{row} · weight", "code")
        steps.append((drawing, f"Program {row} reads row {row} once. The sum stays inside the program."))
    return Figure("One program per row: its mean square scales the row.", steps)


def layer_norm() -> Figure:
    three, one = Drawing(), Drawing()
    for number, use in enumerate(("mean", "variance", "result")):
        _row(three.left(4, 24 + 34 * number, "memory"), 10 + 34 * number, "1")
        three.text(200, 44 + 34 * number, f"pass {number + 1}: {use}", "quiet")
    _row(one.left(4, 24, "memory"), 10, "0")
    one.arrow(200, 34, 200, 50).text(232, 46, "load once", "quiet")
    _row(one.left(4, 70, "registers"), 56, "0")
    one.text(200, 96, "mean, variance and result from registers", "quiet")._reach(118)
    return Figure(
        "LayerNorm reads its row three times, or once.",
        [
            (three, "Three passes: every element crosses memory three times."),
            (one, "One pass: the row stays in registers, and memory is read once."),
        ],
    )


def fused_norm_relu() -> Figure:
    two, one = Drawing(), Drawing()
    for drawing, boxes in ((two, ("x", "norm", "between", "relu", "y")), (one, ("x", "norm + relu", "y"))):
        width = 320 / len(boxes)
        for number, name in enumerate(boxes):
            x = 20 + width * number
            memory = number % 2 == 0
            drawing.box(x + 6, 20, width - 18, 30, "1" if memory else "0", name)
            drawing.text(x + width / 2 - 3, 66, "memory" if memory else "kernel", "quiet")
            if number:
                drawing.arrow(x - 12, 35, x + 5, 35)
    two.text(180, 92, "4 crossings of memory", "bad")
    one.text(180, 92, "2 crossings of memory", "good")
    return Figure(
        "Two kernels cross memory four times, one fused kernel twice.",
        [
            (two, "Two kernels: the matrix in between is written and read again."),
            (one, "One kernel: the intermediate stays in registers."),
        ],
    )


def rms_norm_backward() -> Figure:
    drawing = Drawing().box(10, 40, 56, 26, "0", "x[i]").box(280, 40, 64, 26, "2", "loss")
    drawing.arrow(68, 46, 278, 46).text(172, 38, "directly: · r · w[i]", "quiet")
    drawing.box(140, 84, 72, 26, "1", "r (row)").arrow(50, 68, 138, 96).arrow(214, 96, 296, 68)
    drawing.text(176, 128, "through r: x[i] changes the whole row", "quiet")
    return Figure(
        "An element acts on the loss directly, and through the norm of its row.",
        [(drawing, "Two ways to the loss, so two terms in the gradient. The lower one is often forgotten.")],
    )


def softmax() -> Figure:
    values = [1.0, 3.0, 2.0, 90.0]
    plain, safe = Drawing(), Drawing()
    for drawing, shift in ((plain, 0.0), (safe, 90.0)):
        drawing.left(4, 24, "x").cells(70, 10, [f"{one:g}" for one in values], "plain", 66)
        drawing.left(4, 60, "x − max" if shift else "x").cells(70, 46, [f"{one - shift:g}" for one in values], "0", 66)
        big = [one - shift > 88 for one in values]
        texts = ["inf" if over else f"{exp(one - shift):.2g}" for over, one in zip(big, values, strict=True)]
        drawing.left(4, 96, "exp").cells(70, 82, texts, ["bad" if over else "good" for over in big], 66)
    return Figure(
        "Softmax with and without subtracting the maximum.",
        [
            (plain, "exp(90) overflows float32: infinity divided by infinity is not a number."),
            (safe, "With the maximum subtracted, the largest exponent is 0. The result is the same."),
        ],
    )


def online_softmax() -> Figure:
    blocks = ([2.0, 1.0], [4.0, 3.0], [1.0, 5.0], [0.0, 2.0])
    steps, largest, total = [], float("-inf"), 0.0
    for number, block in enumerate(blocks):
        drawing = Drawing()
        for index, values in enumerate(blocks):
            kind = str(number) if index == number else "plain" if index < number else "dim"
            drawing.cells(20 + 82 * index, 12, [f"{one:g}" for one in values], kind, 40)
        before, old = largest, total
        largest = max(largest, *block)
        scale = exp(before - largest)
        total = total * scale + sum(exp(one - largest) for one in block)
        drawing.text(60 + 82 * number, 48, "this block", "quiet")
        drawing.left(20, 80, f"max   {before:g} → {largest:g}", "code")
        drawing.left(20, 100, f"sum   {old:.3g} · {scale:.3g} + new = {total:.3g}", "code")
        said = "The maximum grows: the old sum is scaled down." if number and scale < 1 else "The maximum stays."
        steps.append((drawing, f"Block {number}: {said if number else 'the first maximum and sum.'}"))
    return Figure("Online softmax: maximum and sum are corrected from block to block.", steps)


def cross_entropy() -> Figure:
    drawing = _row(Drawing().left(4, 24, "x"), 10, ["plain"] * 3 + ["mark"] + ["plain"] * 6)
    drawing.text(158, 46, "target", "quiet").arrow(158, 50, 158, 76).text(158, 90, "x[target]", "code")
    drawing.arrow(260, 32, 260, 76).text(260, 90, "log Σ exp(x)", "code")
    drawing.text(208, 116, "loss = log Σ exp(x) − x[target]", "code").text(208, 136, "one number per row", "quiet")
    return Figure(
        "The loss of a row needs one sum and one element.",
        [(drawing, "One pass over the row, one more element, one number written: no matrix of probabilities.")],
    )


def rope() -> Figure:
    steps = []
    for lane in range(4):
        drawing = Drawing()
        kinds = [str(lane) if cell % 4 == lane else "plain" for cell in range(8)]
        labels: list[object] = [f"{'a' if cell < 4 else 'b'}{cell % 4}" for cell in range(8)]
        drawing.left(4, 28, "in").cells(40, 14, labels, kinds, 38).left(4, 108, "out").cells(40, 94, labels, kinds, 38)
        for cell in (lane, lane + 4):
            x = 40 + 38 * cell + 18
            drawing.arrow(x, 36, x, 92)
        drawing.line(40 + 38 * lane + 18, 60, 40 + 38 * (lane + 4) + 18, 60)
        drawing.text(192, 56, "rotate by the angle of this position", "quiet")
        drawing.text(116, 132, "first half", "quiet").text(268, 132, "second half", "quiet")
        steps.append((drawing, f"Lane {lane} rotates the pair (a{lane}, b{lane}): x[{lane}] and x[half + {lane}]."))
    return Figure("Rotary positions: a pair lies in two halves of the row.", steps)


def swiglu() -> Figure:
    rows, tiles = Drawing(), Drawing()
    for drawing, per_row in ((rows, True), (tiles, False)):
        drawing.text(50, 14, "x").grid(20, 20, 6, 3, lambda r, c: "0" if not per_row or r == 2 else "plain", size=20)  # noqa: B023
        drawing.text(140, 14, "Wg").grid(110, 20, 3, 3, lambda r, c: "1").text(220, 14, "Wu")
        drawing.grid(190, 20, 3, 3, lambda r, c: "2").text(310, 14, "out")
        drawing.grid(280, 20, 6, 3, lambda r, c: "3" if not per_row or r == 2 else "plain", size=20)  # noqa: B023
        drawing.text(180, 110, "silu(x · Wg) · (x · Wu)", "code")
    return Figure(
        "SwiGLU by rows and by tiles.",
        [
            (rows, "One program per row: every row reads all weights again."),
            (tiles, "One program per tile: a tile of rows shares the weights, as in a matrix product."),
        ],
    )
