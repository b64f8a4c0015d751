"""What observers of a kernel see, and where it happens.

Files, in reading order:

- `observers.py`: `Observer`, the facts that it sees, and the errors of a kernel.
- `positions.py`: the line of the user's source that performs an operation.
- `operations.py`: operations of programs that an observer follows.
"""
