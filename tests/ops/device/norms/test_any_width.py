"""Norms of rows that start at any address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.hardware.devices import for_target
from tilesmith.hardware.occupancy import occupancy
from tilesmith.ops import SPECS
from tilesmith.ops.device.norms import any_width
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.toolchain.compiler import Target, compile_kernel

NORMS = ("rms_norm", "add_rms_norm", "rms_norm_relu", "layer_norm")


def arguments(operator: str, rows: int, columns: int, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Return what the operator takes: x, the residual of add_rms_norm, and every parameter."""
    shapes = [(rows, columns)] * (2 if operator == "add_rms_norm" else 1) + [(columns,)]
    shapes += [(columns,)] if operator == "layer_norm" else []
    made = [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]
    made[0] = made[0] + 2  # a mean that is not zero, so that a wrong one is seen
    return [one.requires_grad_() for one in made]


def computed(function: Callable[..., Any], given: list[Tensor], dys: list[Tensor]) -> list[Tensor]:
    """Return the outputs and the gradient of every argument."""
    outputs = function(*given)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    return [*outputs, *torch.autograd.grad(outputs, given, dys[: len(outputs)])]


@covering(
    times=2,
    operator=NORMS,
    columns=(513, 520, 600, 777, 1023, 1025),
    rows=(1, 3, 19),
    dtype=(torch.float32, torch.float16, torch.bfloat16),
)
def test_any_width_matches_float64(operator: str, columns: int, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = arguments(operator, rows, columns, dtype)
    dys = [torch.randn(rows, columns, dtype=dtype) for _ in range(2)]
    with ts.use("interpret"):
        ours = computed(SPECS[operator].op, given, dys)
    doubles = [one.detach().double().requires_grad_() for one in given]
    right = computed(SPECS[operator].reference, doubles, [dy.double() for dy in dys])
    for one, wanted in zip(ours, right, strict=True):
        error = (one.double() - wanted).norm() / wanted.norm()
        # Half precision rounds the sum of add_rms_norm before its norm, and the result once more.
        assert error < (1e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("operator", NORMS)
def test_any_width_takes_strided_parameters(operator: str) -> None:
    torch.manual_seed(0)
    given = arguments(operator, 5, 777, torch.float32)
    dys = [torch.randn(5, 777) for _ in range(2)]
    strided = [
        one if one.ndim == 2 else torch.stack([one.detach(), torch.full_like(one, 7.0)], 1)[:, 0] for one in given
    ]
    strided = [one.detach().requires_grad_() for one in strided]
    assert any(one.stride(-1) == 2 for one in strided)
    with ts.use("interpret"):
        ours, right = computed(SPECS[operator].op, strided, dys), computed(SPECS[operator].op, given, dys)
    for one, wanted in zip(ours, right, strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0)


def launched_for(x: Tensor) -> list[str]:
    with recorded_plans("cuda:90") as plans:
        SPECS["rms_norm"].op(x, torch.empty(x.shape[-1], dtype=x.dtype, device="meta"))
    return [launch.kernel.__name__ for plan in plans for launch in plan.launches]


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("rows aligned unlike the result's", torch.empty(300, 4098, dtype=torch.bfloat16, device="meta")[:, :4097]),
        ("rows of two dimensions that do not merge", torch.empty(20, 30, 4097, device="meta")[:, ::2]),
        ("columns apart", torch.empty(4097, 300, device="meta").t()),
    ],
)
def test_any_width_leaves_other_rows_to_other_forms(name: str, x: Tensor) -> None:
    """A vector access to a row that is aligned unlike the result's faults on a GPU."""
    assert not any("any_width" in kernel for kernel in launched_for(x))
    assert any("any_width" in kernel for kernel in launched_for(torch.empty_like(x).contiguous().view(-1, 4097)))


# layer_norm has all that rms_norm has, and add_rms_norm adds a residual.
COMPILED_FIRST = {("layer_norm", "cuda:90"), ("layer_norm", "hip:gfx942"), ("add_rms_norm", "cuda:90")}


@pytest.mark.parametrize(
    ("operator", "target"),
    [
        pytest.param(operator, target, marks=[] if (operator, target) in COMPILED_FIRST else [pytest.mark.slow])
        for target in ("cuda:90", "hip:gfx942")
        for operator in NORMS
    ],
)
def test_any_width_moves_in_16_byte_vectors_without_spilling(operator: str, target: str) -> None:
    with recorded_plans(target) as plans:
        given = arguments(operator, 3000, 4097, torch.bfloat16, "meta")
        computed(SPECS[operator].op, given, [torch.empty(3000, 4097, dtype=torch.bfloat16, device="meta")] * 2)
    launches = [launch for plan in plans for launch in plan.launches]
    for launch in (one for one in launches if "copies" in one.kernel.__name__):
        assert (
            compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options()).spill_bytes == 0
        )
    assert {"norm_any_width_forward_kernel", "norm_parameter_copies_kernel"} <= {
        one.kernel.__name__ for one in launches
    }
    for launch in (one for one in launches if "any_width" in one.kernel.__name__):
        binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0
        for kind in ("load", "store"):
            assert max(access.vector_bytes for access in binary.accesses if access.kind == kind) == 16


@pytest.mark.parametrize("operator", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("columns", [300, 528, 4096, 4097, 5120, 9216])
def test_any_width_serves_both_directions_of_all_but_powers_of_two(operator: str, columns: int) -> None:
    with recorded_plans("cuda:90") as plans:
        given = arguments(operator, 300, columns, torch.bfloat16, "meta")
        computed(SPECS[operator].op, given, [torch.empty(300, columns, dtype=torch.bfloat16, device="meta")])
    launched = {launch.kernel.__name__ for plan in plans for launch in plan.launches}
    named = {"norm_any_width_forward_kernel", "norm_any_width_backward_kernel"}
    assert launched & named == (set() if columns == 4096 else named)


def launches_of(operator: str, rows: int, columns: int, target: str = "cuda:90") -> list[PlannedLaunch]:
    with recorded_plans(target) as plans:
        given = arguments(operator, rows, columns, torch.bfloat16, "meta")
        computed(SPECS[operator].op, given, [torch.empty(rows, columns, dtype=torch.bfloat16, device="meta")] * 2)
    return [launch for plan in plans for launch in plan.launches]


@pytest.mark.parametrize(("columns", "alike"), [(4097, 8), (4098, 4), (4100, 2), (9217, 8), (20001, 8)])
def test_any_width_backward_programs_take_rows_of_one_alignment(columns: int, alike: int) -> None:
    """Program p takes the rows p, p + programs, …; after `alike` rows a row starts at the same place in a vector."""
    for rows in (7, 263, 5000):
        backward = next(one for one in launches_of("rms_norm", rows, columns) if "backward" in one.kernel.__name__)
        parts = backward.arguments.get("n_parts", 1)
        assert isinstance(parts, int)
        assert backward.grid[0] // parts % alike == 0


@pytest.mark.parametrize("operator", ["layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("columns", [4104, 20008])
def test_rows_of_whole_vectors_have_no_edges(operator: str, columns: int) -> None:
    """The compiler knows multiples of 16 alone, but 8 elements of bfloat16 are a vector."""
    named = ("norm_any_width_forward_kernel", "norm_any_width_backward_kernel", "norm_team_backward_kernel")
    launches = [one for one in launches_of(operator, 3000, columns) if one.kernel.__name__ in named]
    assert len(launches) == 2
    for launch in launches:
        assert not launch.arguments["EDGES"]
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        for kind in ("load", "store"):
            assert max(access.vector_bytes for access in binary.accesses if access.kind == kind) == 16


@pytest.mark.parametrize("operator", NORMS)
def test_narrow_odd_rows_are_normed_by_persistent_programs(operator: str) -> None:
    launch = next(one for one in launches_of(operator, 40000, 645) if "forward" in one.kernel.__name__)
    assert launch.kernel.__name__ == "norm_persistent_forward_kernel"
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes <= 32  # Triton 3.9; none with 3.6
    needed = occupancy(
        for_target("cuda:90"), num_warps=1, registers=binary.registers, shared_bytes=binary.shared_bytes
    )  # fmt: skip
    assert needed.blocks * 132 >= launch.grid[0]  # else the last programs start when the first have ended


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
def test_persistent_programs_compile_for_other_gpus(target: str) -> None:
    launch = next(one for one in launches_of("layer_norm", 40000, 645, target) if "forward" in one.kernel.__name__)
    assert launch.kernel.__name__ == "norm_persistent_forward_kernel"
    assert compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options()).spill_bytes <= 32


@covering(
    times=2,
    operator=NORMS,
    columns=(40, 319, 520, 645),
    rows=(1, 37),
    dtype=(torch.float32, torch.bfloat16),
)
def test_persistent_forward_matches_float64(operator: str, columns: int, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [one.detach() for one in arguments(operator, rows, columns, dtype)]
    with ts.use("interpret"), ts.ops.configured(form="persistent", BLOCK_SIZE=256, num_warps=1, ROWS=1):
        ours = SPECS[operator].op(*given)
    right = SPECS[operator].reference(*[one.double() for one in given])
    pairs = zip(ours, right, strict=True) if isinstance(ours, tuple) else [(ours, right)]
    for one, wanted in pairs:
        error = (one.double() - wanted).norm() / wanted.norm()
        assert error < (1e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("operator", NORMS)
def test_copies_of_parameters_match_float64(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large odd rows read their parameters from copies; here small ones do."""
    monkeypatch.setattr(any_width, "COPIES_FROM", 0)
    torch.manual_seed(0)
    given = arguments(operator, 9, 619, torch.float32)
    dys = [torch.randn(9, 619) for _ in range(2)]
    with ts.use("interpret"):
        ours = computed(SPECS[operator].op, given, dys)
    right = computed(SPECS[operator].reference, [one.detach().double().requires_grad_() for one in given],
                     [dy.double() for dy in dys])  # fmt: skip
    for one, wanted in zip(ours, right, strict=True):
        assert (one.double() - wanted).norm() / wanted.norm() < 1e-6


@pytest.mark.parametrize("columns", [1101, 1104])
def test_many_chunks_for_few_threads_are_right(columns: int) -> None:
    torch.manual_seed(0)
    given = arguments("layer_norm", 5, columns, torch.float32)
    exact = [one.detach().double().requires_grad_() for one in given]
    dy = torch.randn(5, columns)
    with ts.use("interpret"), ts.ops.configured(form="any width", BLOCK_SIZE=128):
        ours = torch.autograd.grad(SPECS["layer_norm"].op(*given), given, dy)
    right = torch.autograd.grad(SPECS["layer_norm"].reference(*exact), exact, dy.double())
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
