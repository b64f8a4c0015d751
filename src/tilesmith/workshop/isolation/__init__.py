"""Running learners' files in a child process, so that no file can harm the command or the learner's work.

Files, in reading order:

- `process_use.py`: the memory and the time that a process uses.
- `worker.py`: the parent's side: starts the child, sends requests, enforces limits.
- `worker_process.py`: the child's side: forks a process for each file.
- `outside_verdict.py`: the judge's opinion of a file that passed its check.
"""
