"""Tables and the chart of README and docs, generated from stored results.

Files, in reading order:

- `generate.py`: finds the marked places in the pages and writes the tables of operators.
- `model_tables.py`: the tables of whole models.
- `survey_tables.py`: the table of the stored surveys.
- `headline_chart.py`: README's chart.
"""
