"""Gradients and what they need: functions, kept statistics, grouped heads, occupancy."""

from __future__ import annotations

from tilesmith.workshop.figures.drawing import Drawing, Figure


def autograd() -> Figure:
    cut, joined = Drawing(), Drawing()
    for drawing, works in ((cut, False), (joined, True)):
        for number, name in enumerate(("weights", "kernel", "loss")):
            drawing.box(10 + 125 * number, 20, 86, 28, str(number), name)
            if number:
                drawing.arrow(97 + 125 * (number - 1), 34, 9 + 125 * number, 34)
        drawing.arrow(258, 62, 224, 62, "good" if works else "bad")
        drawing.text(292, 66, "gradient", "quiet")
    cut.text(52, 66, "never trained", "bad").line(206, 52, 222, 72, "bad").line(222, 52, 206, 72, "bad")
    joined.arrow(134, 62, 98, 62, "good").box(136, 56, 84, 28, "1", "backward").text(52, 66, "trained", "good")
    return Figure(
        "The way of the gradient, with and without an autograd function.",
        [
            (cut, "A kernel that is called directly: the gradient ends there, and nothing before it trains."),
            (joined, "An autograd function joins the kernel with a second one, which passes the gradient on."),
        ],
    )


def layer_norm_statistics() -> Figure:
    drawing = Drawing().left(4, 14, "forward", "quiet")
    drawing.box(10, 22, 96, 26, "0", "x: a row").arrow(108, 35, 140, 35).box(142, 22, 84, 26, "2", "kernel")
    drawing.arrow(228, 35, 258, 35).box(260, 22, 90, 26, "0", "result")
    drawing.arrow(184, 50, 184, 70).box(132, 72, 104, 24, "mark", "mean, 1/deviation")
    drawing.arrow(184, 98, 184, 118).left(4, 112, "backward", "quiet")
    drawing.box(10, 120, 96, 26, "0", "x, gradient").arrow(108, 133, 140, 133).box(142, 120, 84, 26, "2", "kernel")
    drawing.arrow(228, 133, 258, 133).box(260, 120, 90, 26, "1", "gradient of x")
    return Figure(
        "The forward keeps two numbers per row for the backward.",
        [(drawing, "Two numbers per row go from the forward to the backward: no sum is made twice.")],
    )


def grouped_heads() -> Figure:
    copied, shared = Drawing(), Drawing()
    for head in range(4):
        copied.box(10 + 88 * head, 16, 76, 22, str(head // 2), f"q head {head}")
        copied.arrow(48 + 88 * head, 40, 48 + 88 * head, 64).box(
            10 + 88 * head, 66, 76, 22, str(head // 2), "copy of k"
        )
        shared.box(10 + 88 * head, 16, 76, 22, str(head // 2), f"q head {head}")
        shared.arrow(48 + 88 * head, 40, 92 + 176 * (head // 2), 64)
    for group in range(2):
        shared.box(40 + 176 * group, 66, 104, 22, str(group), f"k head {group}")
    copied.text(180, 112, "repeat_interleave: 2 copies of each key head", "bad")
    shared.text(180, 112, "key head = head // group: no copy", "good")
    return Figure(
        "Grouped heads with copied keys, and with shared keys.",
        [
            (copied, "repeat_interleave writes each key head once per head of q."),
            (shared, "The heads of a group share their key head: one program can load it once for all of them."),
        ],
    )


def occupancy() -> Figure:
    steps = []
    for registers, warps in ((32, 64), (64, 32), (128, 16)):
        drawing = Drawing().left(10, 14, f"{registers} registers per thread", "code")
        drawing.grid(10, 22, 4, 16, lambda r, c: "0" if r * 16 + c < warps else "dim", size=21)  # noqa: B023
        drawing.text(180, 124, f"{warps} of 64 warps fit: occupancy {warps / 64:.0%}", "quiet")
        steps.append((drawing, f"{registers} registers × 32 threads × {warps} warps = 65,536: the supply is used up."))
    return Figure("How many warps a multiprocessor holds, by registers per thread.", steps)
