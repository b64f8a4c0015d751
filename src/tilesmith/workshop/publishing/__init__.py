"""For authors and instructors: verifying exercises and publishing the course.

Files, in reading order:

- `verify.py`: tests that starters fail, solutions pass, wrong variants fail and answers are sound.
- `site.py`: the course as a static site.
"""
