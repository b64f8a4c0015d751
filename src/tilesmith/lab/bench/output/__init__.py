"""Show a bench result.

Files, in reading order:

- `contests.py`: groups the rows of one case and compares them.
- `table.py`: terminal tables.
- `sweep_table.py`: the terminal table of a sweep.
- `page.py`: the HTML page.
- `charts.py`: roofline and size charts, also as PNG.
- `regressions.py`: compares a result with an older one.
"""
