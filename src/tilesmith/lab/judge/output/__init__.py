"""Verdicts for people: the terminal, a table of many, and an HTML page.

Files, in reading order:

- `content.py`: one verdict, two side by side, or a series, as sections of a report.
- `page.py`: the HTML page.
- `explanations.py`: what each kind of reason means.
"""
