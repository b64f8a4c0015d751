"""Tables and charts of README and docs, generated from stored results.

Files, in reading order:

- `generate.py`: finds the marked places in the pages and writes the tables of operators.
- `model_tables.py`: the tables of whole models.
- `ratio_columns.py`: speed ratios as a curve, and the card that charts are drawn on.
- `survey_tables.py`: the table and the curves of the stored surveys.
- `headline_chart.py`: README's chart.
"""
