"""Drawn calls of every operator, with references written anew: the property suite and `tests/fuzz.py` share them.

Files, in reading order:

- `values.py`: tensors of drawn sizes, layouts, dtypes and values.
- `calls.py`: one function per operator that draws its arguments.
- `attention_calls.py`: the same for the attention family and the functions for protein models.
- `references.py`: the operators in float64, sharing no code with their own references.
- `attention_references.py`: the same for the attention family and the functions for protein models.
- `verdict.py`: one drawn call: right, wrong, refused or an internal error.
"""
