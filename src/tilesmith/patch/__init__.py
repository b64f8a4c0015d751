"""Tilesmith's operators inside a Hugging Face model: `patch(model)`, and `unpatch(model)` to go back.

Files, in reading order:

- `patching.py`: `patch`, `unpatch` and `report`, the functions that users call.
- `report.py`: what `patch` reports: parts and fusions, made or not made, and why.
- `families.py`: the supported model families and their differences.
- `rewriting.py`: copies of transformers' methods with some statements replaced.
- `parts/`: the replacements for norms, attention, feed-forward blocks and the loss.
- `gradients/`: autograd functions that join several gradients, and the checks of when these apply.
"""

from tilesmith.patch.patching import patch, report, unpatch
from tilesmith.patch.report import Report

__all__ = ["Report", "patch", "report", "unpatch"]
