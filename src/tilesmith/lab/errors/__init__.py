"""What the errors of Triton and of C++ compilers mean: one catalogue for the workshop, `inspect` and `check`.

Files, in reading order:

- `explanation.py`: an entry of the catalogue, and how a message is looked up.
- `value_errors.py`: errors about values: pointers, truth values, shapes, dtypes and `tl.dot`.
- `language_errors.py`: errors about Python that a kernel cannot use, and about control flow.
- `launch_errors.py`: errors about the launch, its grid and its arguments.
- `autograd_errors.py`: errors of the Python around a kernel.
- `cuda_errors.py`: errors of C++ compilers about a CUDA file.
- `catalogue.py`: the whole catalogue, and the lookup.
- `spelling.py`: the name that a misspelt one resembles.
- `missing_brackets.py`: masks whose comparisons lack brackets.
"""

from tilesmith.lab.errors.catalogue import CATALOGUE, explain, with_explanation
from tilesmith.lab.errors.explanation import Explanation
from tilesmith.lab.errors.missing_brackets import first_missing_brackets
from tilesmith.lab.errors.spelling import did_you_mean

__all__ = ["CATALOGUE", "Explanation", "did_you_mean", "explain", "first_missing_brackets", "with_explanation"]
