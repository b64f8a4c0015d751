"""Every operator against its reference, in the interpreter: results and gradients over dtypes and layouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from _pytest.mark import ParameterSet

from tilesmith.lab.check import Trial, interpretable, run
from tilesmith.ops import SPECS
from tilesmith.spec import CONTIGUOUS, Case, Layout, Spec

# Larger cases take the interpreter seconds for each layout; layouts are tried on smaller cases.
MOST_BYTES_IN_EVERY_LAYOUT = 1 << 16


def layouts(spec: Spec, case: Case, dtype: torch.dtype) -> tuple[Layout, ...]:
    """Return all layouts for single precision; the simplest and the hardest for bfloat16; the simplest for float16.

    The walk does not depend on the dtype, and float16 has elements of the same size as bfloat16.
    """
    if is_large(spec, case):
        return () if dtype == torch.float16 else (CONTIGUOUS,)
    if dtype == torch.float32:
        return tuple(spec.layouts)
    walked = ("contiguous", "transposed") if dtype == torch.bfloat16 else ("contiguous",)
    return tuple(layout for layout in spec.layouts if layout.name in walked)


def tried_first(spec: Spec, case: Case, dtype: torch.dtype) -> tuple[Layout, ...]:
    """Return the simplest layout at every case, and each other layout at one small case, in single precision.

    Half precision uses the simplest layout: bfloat16 at the second case, which has odd sizes, and float16 at the first,
    which is the smallest. The kernels compute in single precision at any dtype.
    """
    in_full = [one for one in spec.cases if interpretable(spec, one) and not is_large(spec, one)]
    number = in_full.index(case) if case in in_full else None
    in_half = {torch.bfloat16: 1, torch.float16: 0}
    first: tuple[Layout, ...] = () if in_half.get(dtype, number) != number else (CONTIGUOUS,)
    if number is None or dtype in in_half:
        return first
    # The hardest is the first, so the second case has it.
    others = sorted((one for one in spec.layouts if one != CONTIGUOUS), key=lambda one: one.name != "transposed")
    return (*first, *others[(number - 1) % len(in_full) :: len(in_full)])


def is_large(spec: Spec, case: Case) -> bool:
    return spec.cost is not None and spec.cost(case, torch.float32).forward.bytes > MOST_BYTES_IN_EVERY_LAYOUT


def trials() -> Iterator[ParameterSet]:
    for spec in SPECS.values():
        for case in [case for case in spec.cases if interpretable(spec, case)]:
            for dtype in spec.dtypes:
                name = f"{spec.name}-{case.name}-{str(dtype).removeprefix('torch.')}"
                every, first = layouts(spec, case, dtype), tried_first(spec, case, dtype)
                at_once, later = (tuple(one for one in every if (one in first) is wanted) for wanted in (True, False))
                if at_once:
                    yield pytest.param(spec, case, dtype, at_once, id=name)
                if later:
                    yield pytest.param(spec, case, dtype, later, id=f"{name}-other-layouts", marks=pytest.mark.slow)


@pytest.mark.parametrize(("spec", "case", "dtype", "layouts"), list(trials()))
def test_agrees_with_its_reference(spec: Spec, case: Case, dtype: torch.dtype, layouts: tuple[Layout, ...]) -> None:
    """One backward each: `test_gradients_accumulate_over_two_backwards` calls it twice for every operator."""
    for layout in layouts:
        results = list(run(Trial(spec, case, dtype, layout, device="cpu", second_backward=False)))
        assert results
        assert not [result for result in results if not result.passed]


def test_every_dtype_and_every_layout_of_an_operator_is_tried_first_at_some_case(spec: Spec) -> None:
    found = {(dtype, layout.name) for case in spec.cases for dtype in spec.dtypes
             for layout in layouts(spec, case, dtype) if layout in tried_first(spec, case, dtype)}  # fmt: skip
    assert {dtype for dtype, _ in found} == set(spec.dtypes)
    assert {name for _, name in found} == {layout.name for layout in spec.layouts}


def test_every_operator_is_tried_at_several_sizes(spec: Spec) -> None:
    assert sum(interpretable(spec, case) for case in spec.cases) >= 3
