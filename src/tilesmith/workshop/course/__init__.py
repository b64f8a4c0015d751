"""Exercises as data: what an exercise declares, how its folder is read, and the order of the course.

Files, in reading order:

- `exercise.py`: the dataclasses: `Exercise`, its sizes, goals, sweep and questions.
- `toml_table.py`: TOML files, read strictly.
- `exercise_file.py`: reading and validating `exercise.toml` and the files beside it.
- `wrong_variants.py`: the wrong programs of an exercise, from `wrong.toml`.
- `catalogue.py`: all exercises by id, in course order.
"""
