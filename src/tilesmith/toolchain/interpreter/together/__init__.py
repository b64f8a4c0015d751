"""Many programs of a launch, computed together.

Files, in reading order:

- `all_programs.py`: the addresses of every program, computed for many programs at once.
- `program_record.py`: one program, recorded with every operation that a store depends on.
- `lockstep.py`: many programs performed together.
- `shared_rows.py`: blocks that several programs share.
"""
