"""The path of cuEquivariance under which models import its functions: `cuequivariance_torch.primitives.triangle`.

Files, in reading order:

- `triangle.py`: the functions of `tilesmith.fold`.
"""
