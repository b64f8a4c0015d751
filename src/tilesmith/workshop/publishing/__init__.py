"""For authors and instructors: verifying exercises and publishing the course.

Files, in reading order:

- `verify.py`: tests that starters fail, solutions pass, wrong variants fail and answers are sound.
- `own_picture.py`: the inspect page of a learner's own file, with the verdict and the goals.
- `lesson_html.py`: the page of an exercise as HTML.
- `site.py`: the course as a static site.
"""
