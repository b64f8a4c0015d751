"""What training runs show.

Files, in reading order:

- `parity.py`: whether the versions of a model compute the same predictions and gradients.
- `comparison.py`: the versions of a model, checked and then trained on the same data.
- `report.py`: runs and comparisons for the terminal and as HTML pages.
- `provenance.py`: GPU, versions, commit and date of a stored result.
"""
