"""The learner's own folder: files to work in, progress, and the report for the instructor.

Files, in reading order:

- `progress.py`: the saved state of every exercise, in one JSON file.
- `workshop_folder.py`: starting, resetting and recording exercises in the learner's folder.
- `save_or_key.py`: waiting for a saved file or a pressed key, for `learn watch`.
- `instructor_report.py`: the progress as JSON and as Markdown.
"""
