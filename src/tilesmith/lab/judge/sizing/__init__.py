"""Sizes at which a candidate may do something else.

Files, in reading order:

- `conditions.py`: sizes at which a condition of the text changes, whatever arithmetic hides them.
- `thresholds.py`: all sizes that the text of a candidate suggests.
- `planting.py`: values that the text suggests, put into inputs.
- `launch_form.py`: what a call launches, apart from its sizes.
"""

from tilesmith.lab.judge.sizing.launch_form import launch_form
from tilesmith.lab.judge.sizing.planting import plant, values_of
from tilesmith.lab.judge.sizing.thresholds import Sizes, sizes_of

__all__ = ["Sizes", "launch_form", "plant", "sizes_of", "values_of"]
