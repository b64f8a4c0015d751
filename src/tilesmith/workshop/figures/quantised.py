"""Quantised numbers, and products with them."""

from __future__ import annotations

from tilesmith.workshop.figures.drawing import Drawing, Figure


def dequantise() -> Figure:
    groups, wraps = Drawing(), Drawing()
    groups.left(4, 24, "q (int8)").cells(70, 10, [12, -7, 90, 3, 127, -1, 40, 8], ["0"] * 4 + ["1"] * 4, 34)
    for number, (scale, zero) in enumerate(((0.1, 2), (0.3, -128))):
        x = 70 + 136 * number
        groups.box(x, 48, 66, 20, str(number), f"scale {scale:g}").box(x + 68, 48, 66, 20, str(number), f"zero {zero}")
        groups.arrow(x + 66, 32, x + 66, 46)
    groups.left(4, 100, "weight").cells(70, 86, [1, -0.9, 8.8, 0.1, 76.5, 38.1, 50.4, 40.8], "plain", 34)
    wraps.left(4, 24, "q − zero").text(180, 24, "127 − (−128) = 255", "code")
    wraps.left(4, 62, "in int8").box(110, 46, 140, 24, "bad", "255 wraps to −1")
    wraps.left(4, 100, "in float32").box(110, 84, 140, 24, "good", "255")
    return Figure(
        "Groups of quantised numbers, and a difference that int8 cannot hold.",
        [
            (groups, "Each group has a scale and a zero point: weight = (q − zero) · scale."),
            (wraps, "int8 ends at 127: a larger difference wraps around, and nothing warns. Convert first."),
        ],
    )


def quantised_matmul() -> Figure:
    steps = []
    for group in range(3):
        drawing = Drawing().text(52, 14, "x (float16)").text(196, 14, "q (int8)").text(312, 14, "scale")
        drawing.grid(10, 22, 3, 6, lambda r, c: str(group) if c // 2 == group else "plain", size=14)  # noqa: B023
        drawing.grid(164, 22, 6, 4, lambda r, c: str(group) if r // 2 == group else "plain", size=16)  # noqa: B023
        drawing.grid(280, 22, 3, 4, lambda r, c: "mark" if r == group else "plain", size=16)  # noqa: B023
        drawing.text(180, 144, f"total += dot(x, q) · scale[{group}]", "code")
        steps.append((drawing, f"Group {group}: two columns of x, two rows of q, one row of scales."))
    return Figure("A product with quantised weights, one group per step.", steps)
