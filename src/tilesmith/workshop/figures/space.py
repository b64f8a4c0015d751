"""Windows, convolution and the triangle."""

from __future__ import annotations

from tilesmith.workshop.figures.drawing import Drawing, Figure


def pooling() -> Figure:
    image = ((1, 3, 2, 0), (4, 2, 1, 1), (0, 7, 8, 5), (6, 1, 3, 2))
    steps = []
    for number in range(4):
        row, column = divmod(number, 2)
        window = [image[2 * row + r][2 * column + c] for r in range(2) for c in range(2)]
        drawing = Drawing().text(80, 14, "x").text(280, 14, "out")

        def kind(r: int, c: int, row: int = row, column: int = column) -> str:
            return "0" if (r // 2, c // 2) == (row, column) else "plain"

        drawing.grid(20, 20, 4, 4, kind, lambda r, c: image[r][c], 30)
        out = lambda r, c: max(image[2 * r + i][2 * c + j] for i in range(2) for j in range(2))  # noqa: E731
        drawing.grid(250, 50, 2, 2, lambda r, c: "3" if 2 * r + c == number else "plain", out, 30)  # noqa: B023  # drawn at once
        drawing.arrow(150, 80, 240, 80)
        steps.append((drawing, f"out[{row}, {column}] = max({', '.join(map(str, window))}) = {max(window)}."))
    return Figure("Max pooling with a window of 2 × 2 and stride 2.", steps)


def im2col() -> Figure:
    steps = []
    for number in range(4):
        row, column = divmod(number, 2)
        drawing = Drawing().text(56, 14, "image").text(200, 14, "matrix of windows").text(330, 14, "w")

        def kind(r: int, c: int, row: int = row, column: int = column) -> str:
            return "0" if row <= r < row + 2 and column <= c < column + 2 else "plain"

        drawing.grid(20, 24, 3, 3, kind, lambda r, c: 3 * r + c, 26)

        def window(r: int, c: int) -> int:
            return 3 * (r // 2 + c // 2) + r % 2 + c % 2

        drawing.grid(150, 24, 4, 4, lambda r, c: "0" if r == number else "plain", window, 26)  # noqa: B023  # drawn at once
        drawing.grid(318, 24, 4, 1, lambda r, c: "1", size=26).text(288, 80, "·").arrow(102, 60, 146, 37 + 26 * number)
        steps.append(
            (
                drawing,
                f"The window at ({row}, {column}) is row {number} of a matrix. Output = that row times the weights.",
            )
        )
    return Figure("A convolution as a matrix product: each window becomes a row.", steps)


def triangle() -> Figure:
    steps = []
    for k in range(4):
        drawing = Drawing()
        points = {"i": (50, 130), "j": (150, 130)}
        for other in range(4):
            x = 25 + 50 * other
            lit = other == k
            drawing.line(*points["i"], x, 30, "good" if lit else "faint").line(
                *points["j"], x, 30, "good" if lit else "faint"
            )
            drawing.box(x - 9, 20, 18, 18, "0" if lit else "plain", f"{other}")
        drawing.line(50, 130, 150, 130, "bad")
        for name, (x, y) in points.items():
            drawing.box(x - 9, y - 9, 18, 18, "3", name)
        drawing.text(100, 152, "edge (i, j)", "quiet").text(100, 12, "k", "quiet")
        drawing.text(280, 14, "a[i, :]").cells(236, 20, list(range(4)), ["0" if n == k else "plain" for n in range(4)])
        drawing.text(280, 64, "b[j, :]").cells(236, 70, list(range(4)), ["0" if n == k else "plain" for n in range(4)])
        drawing.text(280, 118, "out[i, j] +=", "code").text(280, 134, "a[i, k] · b[j, k]", "code")
        steps.append((drawing, f"k = {k}: the edges (i, {k}) and (j, {k}) say something about the edge (i, j)."))
    return Figure("The triangle multiplication: an edge is updated from the two others of each triangle.", steps)
