"""Attention, its causal form and its gradient."""

from __future__ import annotations

from tilesmith.workshop.figures.drawing import Drawing, Figure


def _walk(causal: bool) -> Figure:
    steps = []
    for step in range(4):
        drawing = Drawing().text(206, 12, "keys and values, block by block", "quiet")
        row = 2
        for query in range(4):
            drawing.left(4, 42 + 30 * query, f"queries {query}", "" if query == row else "quiet")
            for key in range(4):
                kind = "plain"
                if causal and key > query:
                    kind = "dim"
                elif query == row and key == step:
                    kind = "0"
                elif query == row and key < step:
                    kind = "2"
                drawing.box(80 + 64 * key, 24 + 30 * query, 60, 26, kind, "½" if causal and key == query else "")
        skipped = causal and step > row
        if skipped:
            drawing.frame(79 + 64 * step, 23 + 30 * row, 62, 28, "bad")
        drawing.left(4, 166, "in registers: max, sum, and the weighted values so far", "quiet")
        if skipped:
            caption = f"Block {step} lies after all queries of the program: the loop ends before it."
        elif causal and step == row:
            caption = f"Block {step} is on the diagonal: computed, and half of it masked (½)."
        else:
            caption = f"Block {step}: scores, new maximum, rescale what is there, add the weighted values."
        steps.append((drawing, caption))
    name = "The causal walk: row 0 has only its diagonal block." if causal else "One program walks along all keys."
    return Figure(f"{name} Scores never leave the chip.", steps)


def flash_attention() -> Figure:
    return _walk(causal=False)


def flash_attention_causal() -> Figure:
    return _walk(causal=True)


def flash_attention_backward() -> Figure:
    steps = []
    for step in range(4):
        drawing = Drawing().text(190, 12, "keys: one program per block", "quiet")
        for query in range(4):
            for key in range(4):
                kind = "1" if (query, key) == (step, 1) else "3" if key == 1 and query < step else "plain"
                drawing.box(80 + 60 * key, 22 + 28 * query, 56, 24, kind)
            drawing.left(4, 38 + 28 * query, f"queries {query}", "" if query == step else "quiet")
        drawing.arrow(168, 136, 168, 152).text(168, 166, "dk, dv of block 1", "code")
        steps.append(
            (drawing, f"Queries {step}: weights are computed again from the kept sums; dk and dv grow in registers.")
        )
    return Figure("The backward pass: a program keeps a block of keys and walks along the queries.", steps)
