"""Every operator against its reference, in the interpreter: results and gradients over dtypes and layouts."""

from __future__ import annotations

import pytest
import torch

from tilesmith.lab.check import Trial, interpretable, run
from tilesmith.ops import SPECS
from tilesmith.spec import CONTIGUOUS, Case, Layout, Spec

# Above this a case takes the interpreter seconds per layout; the layouts are tried on the smaller ones.
MOST_BYTES_IN_EVERY_LAYOUT = 1 << 16


def layouts(spec: Spec, case: Case, dtype: torch.dtype) -> tuple[Layout, ...]:
    """All in single precision; in bfloat16, whose elements are walked alike, the plainest and the hardest. float16 has
    elements of the same size: only its rounding is its own."""
    if is_large(spec, case):
        return (CONTIGUOUS,)
    if dtype == torch.float32:
        return tuple(spec.layouts)
    walked = ("contiguous", "transposed") if dtype == torch.bfloat16 else ("contiguous",)
    return tuple(layout for layout in spec.layouts if layout.name in walked)


def is_large(spec: Spec, case: Case) -> bool:
    return spec.cost is not None and spec.cost(case, torch.float32).forward.bytes > MOST_BYTES_IN_EVERY_LAYOUT


TRIALS = [
    pytest.param(spec, case, dtype, id=f"{spec.name}-{case.name}-{str(dtype).removeprefix('torch.')}")
    for spec in SPECS.values()
    for case in spec.cases
    if interpretable(spec, case)
    for dtype in spec.dtypes
    if dtype != torch.float16 or not is_large(spec, case)
]


@pytest.mark.parametrize(("spec", "case", "dtype"), TRIALS)
def test_agrees_with_its_reference(spec: Spec, case: Case, dtype: torch.dtype) -> None:
    for layout in layouts(spec, case, dtype):
        results = list(run(Trial(spec, case, dtype, layout, device="cpu")))
        assert results
        assert not [result for result in results if not result.passed]


def test_every_operator_is_tried_at_several_sizes(spec: Spec) -> None:
    assert sum(interpretable(spec, case) for case in spec.cases) >= 3
