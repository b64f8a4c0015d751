"""Tilesmith's operators inside a Hugging Face model: `patch(model)`, and `unpatch(model)` to go back.

patching.py   what users call
families.py   the models that are known, and what differs between them
parts.py      norm, feed-forward block and rotary embedding
attention.py  attention, through transformers' own registry
loss.py       the loss without logits
"""

from tilesmith.patch.patching import Report, patch, report, unpatch

__all__ = ["Report", "patch", "report", "unpatch"]
