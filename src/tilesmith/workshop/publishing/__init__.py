"""For authors and instructors: verifying exercises and publishing the course.

Files, in reading order:

- `verify.py`: tests that starters fail, solutions pass, wrong variants fail and answers are sound.
- `own_picture.py`: the inspect page of a learner's own file, with the verdict and the goals.
- `cuda_picture.py`: the same for a CUDA file: what a warp does at each load and store.
- `lesson_html.py`: the page of an exercise as HTML.
- `site.py`: the course as a static site.
"""
