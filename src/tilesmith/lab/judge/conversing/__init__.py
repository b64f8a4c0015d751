"""Talk to a candidate's program in its confined process: call its functions, and let it call ours.

Values travel as data; an object that has no such form stays where it is, and the other side holds a reference to it.

Files, in reading order:

- `wire.py`: values as JSON, and references to objects of the other side.
- `lent.py`: functions that a check may replace.
- `host.py`: in the candidate's process: performs calls, passes ours on.
- `program.py`: in the judge's process: the program, as if it were a module here.
"""
