"""Every launch that the operators plan, compiled for GPUs of three generations; and how few compilations they share."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from typing import Any

import pytest
import torch
from specialisation import key_of, planned_launches
from triton.runtime.jit import JITFunction

from tilesmith.hardware.devices import for_target
from tilesmith.hardware.occupancy import occupancy
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.spec import CONTIGUOUS, LAYOUTS, Case, Layout, Spec
from tilesmith.toolchain.compiler import Target, compile_kernel

TARGETS = [Target.parse(name) for name in ("cuda:80", "cuda:90", "hip:gfx942")]


def tried(spec: Spec, target: Target) -> Iterator[tuple[Case, torch.dtype, Layout]]:
    """Every case in two dtypes; the third dtype and the other layouts once. Those that `is_tried_first` come first."""
    chosen = [(case, dtype, CONTIGUOUS) for case in spec.cases for dtype in (torch.bfloat16, torch.float32)]
    chosen += [(spec.cases[1], torch.float32, layout) for layout in LAYOUTS]
    chosen.append((spec.cases[-1], torch.float16, CONTIGUOUS))
    yield from sorted(chosen, key=lambda one: not is_tried_first(spec, target, *one))


def is_tried_first(spec: Spec, target: Target, case: Case, dtype: torch.dtype, layout: Layout) -> bool:
    """The largest case and an odd one: both dtypes on Hopper, one of each on the other targets."""
    if layout is not CONTIGUOUS or dtype == torch.float16:
        return False
    if str(target) == "cuda:90":
        return case in (spec.cases[1], spec.cases[-1])
    return (case, dtype) in ((spec.cases[1], torch.float32), (spec.cases[-1], torch.bfloat16))


def distinct_launches() -> dict[str, tuple[Target, PlannedLaunch, bool]]:
    """One launch for each compiled variant of each kernel on each target, by a name to be read in a test's report; and
    whether it is tried first, or is the first of its kernel."""
    found: dict[Hashable, tuple[str, tuple[Target, PlannedLaunch, bool]]] = {}
    kernels: set[tuple[Target, str]] = set()
    for target in TARGETS:
        for spec in SPECS.values():
            for case, dtype, layout in tried(spec, target):
                short = str(dtype).removeprefix("torch.")
                first = is_tried_first(spec, target, case, dtype, layout)
                for launch in planned_launches(spec, case, dtype, layout, str(target)):
                    kernel = launch.kernel.__name__
                    name = f"{spec.name}-{kernel}-{case.name}-{short}-{layout.name}-{target}"
                    new = (target, kernel) not in kernels
                    kernels.add((target, kernel))
                    found.setdefault((target, key_of(launch)), (name, (target, launch, first or new)))
    return dict(found.values())


LAUNCHES = distinct_launches()


def all_of_them() -> Iterator[Any]:
    """All together take far longer to compile: most are left to `make test-slow`."""
    for name, (_, _, first) in LAUNCHES.items():
        yield pytest.param(name, marks=() if first else pytest.mark.slow)


@pytest.mark.parametrize("name", list(all_of_them()))
def test_compiles_without_spilling_and_fits(name: str) -> None:
    target, launch, _ = LAUNCHES[name]
    binary = compile_kernel(launch.kernel, target, launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
    assert binary.num_warps == launch.config.num_warps
    architecture = for_target(str(target))
    needed = occupancy(
        architecture, num_warps=binary.num_warps, registers=binary.registers, shared_bytes=binary.shared_bytes
    )
    assert needed.blocks >= 1, f"does not fit: {needed.limited_by}"


def declared_kernels() -> set[str]:
    modules = [module for name, module in sys.modules.items() if name.startswith("tilesmith.ops.")]
    functions: list[Any] = [value for module in modules for value in vars(module).values()]
    return {one.__name__ for one in functions if isinstance(one, JITFunction) and one.__name__.endswith("_kernel")}


def test_no_kernel_is_left_out() -> None:
    assert {launch.kernel.__name__ for _, launch, _ in LAUNCHES.values()} == declared_kernels()


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=lambda layout: str(layout.name))
def test_batches_of_many_sizes_share_their_compiled_code(spec: Spec, layout: Layout) -> None:
    """In training the last batch is smaller, in inference every one has its own size: neither may stall to compile."""
    case = spec.cases[-1]
    name, size = next(iter(case.sizes.items()))
    variants = [
        {
            key_of(launch)
            for launch in planned_launches(spec, case.with_sizes(**{name: size - smaller}), torch.bfloat16, layout)
        }
        for smaller in range(1, 40)
    ]
    assert set.union(*variants) == variants[0]


def test_a_row_more_or_less_in_a_tiny_batch_costs_few_variants(spec: Spec) -> None:
    case = spec.cases[1]
    name = next(iter(case.sizes))
    variants: dict[str, set[Hashable]] = {}
    for size in range(1, 65):
        for launch in planned_launches(spec, case.with_sizes(**{name: size}), torch.float32):
            variants.setdefault(launch.kernel.__name__, set()).add(key_of(launch))
    assert max(len(keys) for keys in variants.values()) <= 8  # one for each power of two, and one more
