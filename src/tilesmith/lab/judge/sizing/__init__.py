"""Sizes at which a candidate may do something else.

Files, in reading order:

- `conditions.py`: sizes at which a condition of the text changes, whatever arithmetic hides them.
- `thresholds.py`: all sizes that the text of a candidate suggests.
- `free_sizes.py`: other sizes than those that a task gives.
- `planting.py`: values that the text suggests, put into inputs.
- `launch_form.py`: what a call launches, apart from its sizes, and in how many programs.
"""

from tilesmith.lab.judge.sizing.launch_form import computation_of, launch_form, programs_of
from tilesmith.lab.judge.sizing.planting import plant, values_of
from tilesmith.lab.judge.sizing.thresholds import Sizes, sizes_of

__all__ = ["Sizes", "computation_of", "launch_form", "plant", "programs_of", "sizes_of", "values_of"]
