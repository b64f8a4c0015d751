"""Optimisers with torch's constructors and state dicts, which update all parameters of a dtype in two launches.

Files, in reading order:

- `adamw.py`: AdamW, which takes its parameters out of torch's own step.
- `step_updates.py`: the updates of one step: which parameters take part, and the tables of their launches.
- `updated_parameter.py`: one parameter that our kernels update.
- `address_tables.py`: the tables through which a launch finds its tensors.
- `adamw_kernels.py`: the kernels.
"""

from tilesmith.optim.adamw import AdamW

__all__ = ["AdamW"]
