"""Every planned launch compiles for three GPU architectures; and batches of many sizes share compiled code."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from specialisation import key_of, planned_launches
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.hardware.devices import for_target
from tilesmith.hardware.occupancy import occupancy
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.spec import CONTIGUOUS, LAYOUTS, Case, Layout, Spec
from tilesmith.toolchain.compiler import Binary, Target, compile_kernel

HOPPER = Target.parse("cuda:90")
AMPERE = Target.parse("cuda:80")
TARGETS = [HOPPER, AMPERE, Target.parse("hip:gfx942")]


def tried(spec: Spec) -> Iterator[tuple[Case, torch.dtype, Layout]]:
    """Yield every case in two dtypes, the third dtype and the other layouts once.

    Those that `is_tried_first` come first; the largest case first of all.
    """
    chosen = [(case, dtype, CONTIGUOUS) for case in spec.cases for dtype in (torch.bfloat16, torch.float32)]
    chosen += [(spec.cases[1], torch.float32, layout) for layout in LAYOUTS]
    chosen.append((spec.cases[-1], torch.float16, CONTIGUOUS))
    yield from sorted(chosen, key=lambda one: (not is_tried_first(spec, *one), one[0] != spec.cases[-1]))


def is_tried_first(spec: Spec, case: Case, dtype: torch.dtype, layout: Layout) -> bool:
    """Whether this is the largest case in half precision, as users run it."""
    return case == spec.cases[-1] and dtype == torch.bfloat16 and layout is CONTIGUOUS


@cache
def launches(operator: str, target: Target) -> list[tuple[Case, torch.dtype, Layout, PlannedLaunch]]:
    """Return all launches of the operator in its trials."""
    spec = SPECS[operator]
    return [(*trial, launch) for trial in tried(spec) for launch in planned_launches(spec, *trial, str(target))]


@cache
def homes(target: Target) -> dict[Any, str]:
    """Return, for each kernel, the operator that it was written for, or the first that launches it."""
    launched: dict[Any, list[str]] = {}
    for operator in SPECS:
        for *_, launch in launches(operator, target):
            launched.setdefault(launch.kernel, []).append(operator)
    return {
        kernel: next((name for name in names if name in kernel.fn.__module__.split(".")), names[0])
        for kernel, names in launched.items()
    }


COMPILED_BY_THEIR_OWN_TESTS = {
    "attention_hopper_forward_kernel",
    "matmul_hopper_kernel",
    "matmul_hopper_tiles_kernel",
    "matmul_hopper_exact_kernel",
    "matmul_hopper_rows_kernel",
}


@cache
def distinct_launches(target: Target) -> dict[str, dict[Hashable, tuple[str, PlannedLaunch, bool]]]:
    """Return, for each operator, one launch of each compiled variant: its name, the launch, and whether it comes first.

    On Hopper the variants that are tried first come first, under the operator that they were written for; on other
    targets one variant of each kernel with a dot, whose shared memory and matrix units differ most between targets.
    Kernels without a dot compile once for each configuration. Kernels that a fast test of their own compiles come last.
    """
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
        if launch.kernel.__name__ in COMPILED_BY_THEIR_OWN_TESTS or (
            target != HOPPER and not multiplies(launch.kernel)
        ):
            first = False
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
    """Whether the kernel or one of its device functions has a dot: dtypes and alignment then decide its registers.

    Other kernels compute in single precision, whatever they load.
    """
    names = function.fn.__code__.co_names
    used = [function.fn.__globals__.get(name) for name in names]
    return not {"dot", "warpgroup_mma"}.isdisjoint(names) or any(
        multiplies(one) for one in used if isinstance(one, JITFunction) and one is not function
    )


def configuration_of(launch: PlannedLaunch) -> Hashable:
    """Return a kernel's compile-time constants, warps and stages; with a dot, the dtypes too."""
    constants = [(one.name, str(launch.arguments[one.name])) for one in launch.kernel.params if one.is_constexpr]
    dtypes = re.findall(r"[bf][fp]\d+", str(key_of(launch))) if multiplies(launch.kernel) else []
    return launch.kernel.__name__, tuple(constants), tuple(dtypes), str(sorted(launch.options().items()))


def what_is_wrong(launch: PlannedLaunch, target: Target) -> str | None:
    """Return what is wrong with the compiled launch, or None."""
    binary = compile_kernel(launch.kernel, target, launch.arguments, **launch.options())
    if binary.spill_bytes:
        return f"spills {binary.spill_bytes} bytes"
    if leaves_registers_in_flight(launch, binary):
        return "loads the next step into registers that wgmma may still read"
    if binary.num_warps != launch.config.all_warps:
        return f"has {binary.num_warps} warps, not {launch.config.all_warps}"
    needed = occupancy(
        for_target(str(target)),
        num_warps=binary.num_warps, registers=binary.registers, shared_bytes=binary.shared_bytes,
    )  # fmt: skip
    return None if needed.blocks >= 1 else f"does not fit: {needed.limited_by}"


def leaves_registers_in_flight(launch: PlannedLaunch, binary: Binary) -> bool:
    """Whether a loop goes on while wgmma reads its left operand from registers. Gluon kernels say themselves when."""
    by_itself = isinstance(launch.kernel, GluonJITFunction)
    return not by_itself and "ttgir" in binary.assembly and reads_registers_in_flight(binary.assembly["ttgir"])


def reads_registers_in_flight(ir: str) -> bool:
    products = re.findall(r"(%\w+) = ttng\.warp_group_dot %.*isAsync = true.*: tensor<[^>]*dot_op<", ir)
    return any(re.search(rf"warp_group_dot_wait {one}\b.*pendings = [1-9]", ir) for one in products)


@triton.jit
def merged_rows_kernel(x, w, y_ptr, steps):  # type: ignore[no-untyped-def]  # a kernel
    total = tl.zeros([128, 128], tl.float32)
    for step in range(steps):
        rows = x.load([0, 0, 0, step * 64]).reshape(128, 64)
        total = tl.dot(rows, w.load([0, step * 64]).T, total)
    tl.store(y_ptr + tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :], total)


def test_a_reshape_that_merges_dimensions_is_found() -> None:
    """As conv2d once loaded its images: up to 0.2 % of the results were wrong on a GPU."""
    x = torch.empty(2, 8, 32, 512, dtype=torch.bfloat16, device="meta")
    w, y = torch.empty(128, 512, dtype=torch.bfloat16, device="meta"), torch.empty(128, 128, device="meta")
    described = [
        TensorDescriptor(one, list(one.shape), list(one.stride()), block)
        for one, block in ((x, [1, 4, 32, 64]), (w, [128, 64]))
    ]
    arguments = {"x": described[0], "w": described[1], "y_ptr": y, "steps": 8}
    binary = compile_kernel(merged_rows_kernel, Target.parse("cuda:90"), arguments, num_warps=8, num_stages=3)
    assert reads_registers_in_flight(binary.assembly["ttgir"])


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
    """Most variants compile only in `make test-slow`; all of them take far longer."""
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


# Only patched models launch the first two, only norms of large odd rows the third, only long odd grids the fourth, only
# norms of wide rows whose columns are apart in memory the next ones, only heads of more than 128 elements three more,
# only one query to each head of keys the last. Other tests compile them.
ELSEWHERE = {
    "gated_forward_hopper_kernel", "gated_backward_hopper_kernel", "norm_parameter_copies_kernel",
    "aligned_bias_kernel", "fully_masked_kernel",
    "rms_norm_row_statistics_kernel", "rms_norm_backward_tiles_kernel",
    "layer_norm_row_statistics_kernel", "layer_norm_backward_tiles_kernel",
    "attention_wide_forward_kernel", "attention_wide_dq_kernel", "attention_wide_key_gradient_kernel",
    "attention_decode_row_kernel", "norm_persistent_forward_kernel",
}  # fmt: skip


def test_no_kernel_is_left_out() -> None:
    missing = declared_kernels() - ELSEWHERE
    for target in TARGETS:
        for operator in SPECS:
            if missing:
                missing -= {launch.kernel.__name__ for *_, launch in launches(operator, target)}
    assert not missing


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=lambda layout: str(layout.name))
def test_batches_of_many_sizes_share_their_compiled_code(spec: Spec, layout: Layout) -> None:
    """The last batch of an epoch is smaller, and each inference batch has its own size: neither may compile again."""
    case = spec.cases[-1]
    name, size = next(iter(case.sizes.items()))
    variants = [
        {
            key_of(launch)
            for launch in planned_launches(spec, case.with_sizes(**{name: size - smaller}), torch.bfloat16, layout)
        }
        for smaller in (1, 2, 4, 8, 15, 16, 17)  # each kind of remainder modulo 16, which the compiler specialises on
    ]
    assert set.union(*variants) == variants[0]


def test_tiny_batches_compile_few_variants(spec: Spec) -> None:
    case = spec.cases[1]
    name = next(iter(case.sizes))
    variants: dict[str, set[Hashable]] = {}
    for size in (*range(1, 18), 31, 32, 33, 48, 63, 64):  # each kind of remainder modulo 16 around each power of two
        for launch in planned_launches(spec, case.with_sizes(**{name: size}), torch.float32):
            variants.setdefault(launch.kernel.__name__, set()).add(key_of(launch))
    # One for each power of two, two for other tiles, and two for little depth: of many rows, and of at most 16.
    assert max(len(keys) for keys in variants.values()) <= 11
