"""`tilesmith prove`: a Hugging Face model trained twice, patched and not, and whether the difference is rounding.

Files, in reading order:

- `subject.py`: the model that is trained: a small one of a family, or a configuration of Hugging Face.
- `training_run.py`: one training run, its losses, gradient norms, first gradients and last weights.
- `other_rounding.py`: a model whose modules round differently, the yardstick of the comparison.
- `verdict.py`: what differs between the runs, and whether that is rounding.
- `proving.py`: the three runs and the result in the format of `tilesmith prove --json`.
- `report.py`: the result for the terminal and as an HTML page.
"""

from tilesmith.training.proof.proving import Settings, prove
from tilesmith.training.proof.subject import SubjectError

__all__ = ["Settings", "SubjectError", "prove"]
