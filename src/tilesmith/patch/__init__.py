"""Tilesmith's operators inside other people's models: `patch(model)` and `fold(model)`; `unpatch(model)` to go back.

Files, in reading order:

- `patching.py`: `patch`, `unpatch` and `report`, the functions that users call.
- `trainer.py`: `trainer_callback`, for Hugging Face's and TRL's trainers.
- `report.py`: what `patch` reports: parts and fusions, made or not made, and why.
- `families.py`: the supported model families and their differences.
- `own_forward.py`: our `forward` in a module: given and removed.
- `rewriting.py`: copies of transformers' methods with some statements replaced.
- `usual_modes.py`: PyTorch's modes while `patch` and `fold` try modules on random numbers.
- `parts/`: the replacements for norms, attention, feed-forward blocks and the loss.
- `gradients/`: autograd functions that join several gradients, and the checks of when these apply.
- `folding/`: `fold`, for models of proteins: Boltz, OpenFold, OpenFold3, Protenix.
"""

from tilesmith.patch.folding.fold_model import FoldReport, fold
from tilesmith.patch.patching import patch, report, unpatch
from tilesmith.patch.report import Report
from tilesmith.patch.trainer import trainer_callback

__all__ = ["FoldReport", "Report", "fold", "patch", "report", "trainer_callback", "unpatch"]
