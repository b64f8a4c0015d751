"""Reports as content, shown on a terminal or as a self-contained HTML page.

Files, in reading order:

- `content.py`: tables, charts and other parts of a report, without any layout.
- `number_format.py`: numbers as text with a unit.
- `terminal.py`: prints a report on a terminal.
- `page.py`: renders a report as one HTML file, from `templates/`.
"""
