"""The workshop: exercises that learners solve in their own files, checked stage by stage on any machine.

Files, in reading order:

- `course/`: what an exercise is, how its files are read, and the order of the course.
- `figures/`: the figures of the pages, drawn by code.
- `checking/`: the stages of a check for Triton files and Python programs, the goals and the messages for learners.
- `cuda/`: the same stages for CUDA files, without a GPU.
- `quizzes/`: the answers to an exercise's questions and the replies to guesses.
- `isolation/`: the child process that runs learners' files under limits.
- `learner/`: the learner's folder, the saved progress, `watch` and the report for the instructor.
- `mutants/`: model solutions with one mistake each, which every check must find.
- `publishing/`: verifying exercises for their authors, and the course as a static site.
- `notebook.py`: the `%%check` magic for Jupyter.
"""
