"""Every launch that the operators plan, compiled for GPUs of three generations; and how few compilations they share."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterator
from functools import cache
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

HOPPER = Target.parse("cuda:90")
AMPERE = Target.parse("cuda:80")
TARGETS = [HOPPER, AMPERE, Target.parse("hip:gfx942")]


def tried(spec: Spec) -> Iterator[tuple[Case, torch.dtype, Layout]]:
    """Every case in two dtypes; the third dtype and the other layouts once. Those that `is_tried_first` come first, and
    of them those of the largest case."""
    chosen = [(case, dtype, CONTIGUOUS) for case in spec.cases for dtype in (torch.bfloat16, torch.float32)]
    chosen += [(spec.cases[1], torch.float32, layout) for layout in LAYOUTS]
    chosen.append((spec.cases[-1], torch.float16, CONTIGUOUS))
    yield from sorted(chosen, key=lambda one: (not is_tried_first(spec, *one), one[0] != spec.cases[-1]))


def is_tried_first(spec: Spec, case: Case, dtype: torch.dtype, layout: Layout) -> bool:
    """The largest case as people run it, in half precision."""
    return case == spec.cases[-1] and dtype == torch.bfloat16 and layout is CONTIGUOUS


@cache
def launches(operator: str, target: Target) -> list[tuple[Case, torch.dtype, Layout, PlannedLaunch]]:
    """All that the operator launches in what is tried."""
    spec = SPECS[operator]
    return [(*trial, launch) for trial in tried(spec) for launch in planned_launches(spec, *trial, str(target))]


@cache
def homes(target: Target) -> dict[Any, str]:
    """For each kernel the operator that it was written for, or the first that launches it."""
    launched: dict[Any, list[str]] = {}
    for operator in SPECS:
        for *_, launch in launches(operator, target):
            launched.setdefault(launch.kernel, []).append(operator)
    return {
        kernel: next((name for name in names if name in kernel.fn.__module__.split(".")), names[0])
        for kernel, names in launched.items()
    }


@cache
def distinct_launches(target: Target) -> dict[str, dict[Hashable, tuple[str, PlannedLaunch, bool]]]:
    """For each operator one launch for each compiled variant of each kernel, with a name to be read in a test's report;
    and whether it is compiled first: on Hopper those that are tried first, by the operator that they were written for;
    elsewhere one of each kernel. Kernels that multiply no tiles once for each configuration that is chosen: a small
    block of such a kernel takes fewer registers than a large one."""
    found: dict[str, dict[Hashable, tuple[str, PlannedLaunch, bool]]] = {operator: {} for operator in SPECS}
    kernels: set[Any] = set()
    configurations: set[Hashable] = set()
    at_home_first = sorted(
        (homes(target)[trial[-1].kernel] != operator, number, operator, trial)
        for number, (operator, trial) in enumerate(
            (operator, trial) for operator in SPECS for trial in launches(operator, target)
        )
    )
    for borrowed, _, operator, (case, dtype, layout, launch) in at_home_first:
        first = launch.kernel not in kernels
        if target == HOPPER and not borrowed:
            first = first or is_tried_first(SPECS[operator], case, dtype, layout)
        if first and key_of(launch) not in found[operator]:
            chosen = configuration_of(launch)
            first = chosen not in configurations or multiplies(launch.kernel)
            configurations.add(chosen)
        name = f"{launch.kernel.__name__} for {case.name}, {dtype}, {layout.name}"
        found[operator].setdefault(key_of(launch), (name, launch, first))
        kernels.add(launch.kernel)
    return found


@cache
def multiplies(function: JITFunction) -> bool:
    """Whether it or a device function that it uses multiplies tiles: how, and with how many registers, dtypes and
    alignment decide. Other kernels compute in single precision, whatever they load."""
    names = function.fn.__code__.co_names
    used = [function.fn.__globals__.get(name) for name in names]
    return not {"dot", "warpgroup_mma"}.isdisjoint(names) or any(
        multiplies(one) for one in used if isinstance(one, JITFunction) and one is not function
    )


def configuration_of(launch: PlannedLaunch) -> Hashable:
    """What is chosen for a kernel: compile-time constants, warps and stages; where it multiplies, the dtypes too."""
    constants = [(one.name, str(launch.arguments[one.name])) for one in launch.kernel.params if one.is_constexpr]
    dtypes = re.findall(r"[bf][fp]\d+", str(key_of(launch))) if multiplies(launch.kernel) else []
    return launch.kernel.__name__, tuple(constants), tuple(dtypes), str(sorted(launch.options().items()))


def what_is_wrong(launch: PlannedLaunch, target: Target) -> str | None:
    """Of what it compiles to."""
    binary = compile_kernel(launch.kernel, target, launch.arguments, **launch.options())
    if binary.spill_bytes:
        return f"spills {binary.spill_bytes} bytes"
    if binary.num_warps != launch.config.all_warps:
        return f"has {binary.num_warps} warps, not {launch.config.all_warps}"
    needed = occupancy(
        for_target(str(target)),
        num_warps=binary.num_warps, registers=binary.registers, shared_bytes=binary.shared_bytes,
    )  # fmt: skip
    return None if needed.blocks >= 1 else f"does not fit: {needed.limited_by}"


@pytest.mark.parametrize(
    ("target", "those_tried_first"),
    [
        pytest.param(
            target, first, id=f"{target}-{'tried-first' if first else 'all-others'}",
            marks=[] if first and target != AMPERE else [pytest.mark.slow],
        )
        for target in TARGETS
        for first in (True, False)
    ],
)  # fmt: skip
def test_compiles_without_spilling_and_fits(spec: Spec, target: Target, those_tried_first: bool) -> None:
    """All together take far longer to compile: most are left to `make test-slow`."""
    wrong = [
        (name, what_is_wrong(launch, target))
        for name, launch, first in distinct_launches(target)[spec.name].values()
        if first is those_tried_first
    ]
    assert not [f"{name}: {found}" for name, found in wrong if found is not None]


def declared_kernels() -> set[str]:
    modules = [module for name, module in sys.modules.items() if name.startswith("tilesmith.ops.")]
    functions: list[Any] = [value for module in modules for value in vars(module).values()]
    return {one.__name__ for one in functions if isinstance(one, JITFunction) and one.__name__.endswith("_kernel")}


# Launched by no operator, only for patched models, and compiled in tests of their own.
ELSEWHERE = {"gated_forward_hopper_kernel", "gated_backward_hopper_kernel"}


def test_no_kernel_is_left_out() -> None:
    missing = declared_kernels() - ELSEWHERE
    for target in TARGETS:
        for operator in SPECS:
            if missing:
                missing -= {launch.kernel.__name__ for *_, launch in launches(operator, target)}
    assert not missing


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
        for smaller in range(1, 18)  # every remainder by 16, which is what the compiler looks at
    ]
    assert set.union(*variants) == variants[0]


def test_a_row_more_or_less_in_a_tiny_batch_costs_few_variants(spec: Spec) -> None:
    case = spec.cases[1]
    name = next(iter(case.sizes))
    variants: dict[str, set[Hashable]] = {}
    for size in (*range(1, 18), 31, 32, 33, 48, 63, 64):  # each kind of remainder by 16 around each power of two
        for launch in planned_launches(spec, case.with_sizes(**{name: size}), torch.float32):
            variants.setdefault(launch.kernel.__name__, set()).add(key_of(launch))
    assert max(len(keys) for keys in variants.values()) <= 8  # one for each power of two, and one more
