"""Tilesmith's operators inside a Hugging Face model: `patch(model)`, and `unpatch(model)` to go back.

patching.py      what users call
families.py      the models that are known, and what differs between them
parts.py         norms, and what attention modules do before attention
residual.py      a norm together with the sum before it and the gradient that goes past it
projections.py   linear layers of one input
feed_forward.py  feed-forward blocks
attention.py     attention, through transformers' own registry
loss.py          the loss without logits
embedding.py     an embedding whose weight is also the head's; embedding_rows.py has its kernel
rewriting.py     methods of transformers with some statements replaced
bare.py          which modules may be computed without being called
gradients.py     gradients that can be differentiated again
"""

from tilesmith.patch.patching import Report, patch, report, unpatch

__all__ = ["Report", "patch", "report", "unpatch"]
