"""Many programs of a launch, computed together.

Files, in reading order:

- `all_programs.py`: how the addresses of one program follow from its ids, evaluated for many programs at once.
- `every_address.py`: the accesses of all programs of a grid, in batches.
- `program_record.py`: one program, recorded with every operation that a store depends on.
- `lockstep.py`: many programs performed together.
- `shared_rows.py`: blocks that several programs share.
"""
