# mypy: disable-error-code="no-untyped-call"
# PyTorch does not type its rarer functions and base classes.
"""triangle_multiply: directions, masks, tiles, large values and chunks. Tests for all operators cover the rest."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from differentiation import assert_same, forward_and_backward, leaves_of
from on_hopper import names_launched
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tilesmith as ts
from covering import covering
from tilesmith.lab.check import Trial, run
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.triangle_multiply import SPEC, operator, triangle_multiply
from tilesmith.ops.triangle_multiply.chunked import compute_backward, compute_forward
from tilesmith.ops.triangle_multiply.operator import prepare, prepare_for_chunks, takes
from tilesmith.ops.triangle_multiply.reference import reference
from tilesmith.spec import CONTIGUOUS, Case, Inputs

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])
ADDED = pytest.mark.parametrize("residual", [False, True], ids=["update", "added"])
ADDED_FIRST = pytest.mark.parametrize(
    "residual", [pytest.param(False, marks=pytest.mark.slow), True], ids=["update", "added"]
)
DIRECTIONS = pytest.mark.parametrize("direction", ["outgoing", "incoming"])


def made(residues: int = 3, channels: int = 4, hidden: int = 3, batch: int = 1, direction: str = "outgoing") -> Inputs:
    torch.manual_seed(0)
    both = 2 * hidden
    return {
        "z": torch.randn(batch, residues, residues, channels),
        "direction": direction,
        "mask": torch.rand(batch, residues, residues) > 0.3,
        "norm_weight": torch.randn(channels), "norm_bias": torch.randn(channels),
        "projection_weight": torch.randn(both, channels), "gate_weight": torch.randn(both, channels),
        "output_norm_weight": torch.randn(hidden), "output_norm_bias": torch.randn(hidden),
        "output_weight": torch.randn(channels, hidden), "output_gate_weight": torch.randn(channels, channels),
        "projection_bias": torch.randn(both), "gate_bias": torch.randn(both),
        "output_bias": torch.randn(channels), "output_gate_bias": torch.randn(channels),
    }  # fmt: skip


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()


@BOTH_WAYS
@DIRECTIONS
def test_matches_published_algorithms_pair_by_pair(mode: Any, direction: str) -> None:
    given = made(direction=direction)
    with ts.use(mode):
        ours = triangle_multiply(**given)
    z, mask, n = given["z"][0], given["mask"][0], 3
    zn = torch.stack([torch.stack([standardised(pair) for pair in row]) for row in z])
    zn = zn * given["norm_weight"] + given["norm_bias"]
    projected = zn @ given["projection_weight"].t() + given["projection_bias"]
    a, b = (projected * (zn @ given["gate_weight"].t() + given["gate_bias"]).sigmoid() * mask[..., None]).chunk(2, -1)
    for i in range(n):
        for j in range(n):
            edges = [(a[i, k], b[j, k]) if direction == "outgoing" else (a[k, i], b[k, j]) for k in range(n)]
            x = sum((one * other for one, other in edges), torch.zeros(3))
            xn = standardised(x) * given["output_norm_weight"] + given["output_norm_bias"]
            gate = (given["output_gate_weight"] @ zn[i, j] + given["output_gate_bias"]).sigmoid()
            wanted = gate * (given["output_weight"] @ xn + given["output_bias"])
            torch.testing.assert_close(ours[0, i, j], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inputs", [16, 32], ids=["read again", "held"])
def test_several_tiles_match_float64(inputs: int) -> None:
    """Several tiles of outputs; normed rows in several blocks of inputs, or held in one."""
    given = made(residues=6, channels=18, hidden=17)
    for name in ("projection_weight", "gate_weight", "output_weight", "output_gate_weight"):
        given[name] /= 4  # keeps gates open enough for gradients
    with ts.use("interpret"), ts.ops.configured(ROWS=4, BLOCK_OUTPUTS=16, BLOCK_INPUTS=inputs):
        found = forward_and_backward(triangle_multiply, given)
    for name, value in forward_and_backward(reference, doubled(given)).items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-3, atol=1e-4 * float(value.abs().max()))


def doubled(given: Inputs) -> Inputs:
    """Return the inputs in float64."""
    return {name: one.double() if _is_floating(one) else one for name, one in given.items()}


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@BOTH_WAYS
@DIRECTIONS
def test_masked_pairs_do_not_influence_others(mode: Any, direction: str) -> None:
    given = made(direction=direction)
    mask = given["mask"]
    perturbed = {**given, "z": torch.where(mask[..., None], given["z"], 3 * torch.randn_like(given["z"]))}
    cotangent = torch.randn_like(given["z"]).masked_fill(~mask[..., None], 0.0)

    def results(inputs: Inputs) -> dict[str, Tensor]:
        leaves = {name: one.clone().requires_grad_() if _is_floating(one) else one for name, one in inputs.items()}
        y = triangle_multiply(**leaves)
        y.backward(cotangent)
        found = {name: one.grad for name, one in leaves.items() if _is_floating(one)}
        return {**found, "y": y.detach()[mask], "z": found["z"][mask]}

    with ts.use(mode):
        right, ours = results(given), results(perturbed)
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["interpret", "torch"])
@pytest.mark.parametrize("form", ["fused", "separate", "in chunks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8], ids=str)
def test_mask_of_numbers_leaves_out_zeros(
    dtype: torch.dtype, form: str, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "MOST_FUSED_EXACT_ELEMENTS", 0 if form == "separate" else 1 << 30)
    given = {**made(5), "chunk": 2 if form == "in chunks" else None}
    numbers = torch.tensor([1, -2, 0.25, float("nan"), 256] if dtype.is_floating_point else [1, 2, 64, 127, 3])
    mask = torch.where(given["mask"], numbers.expand(given["mask"].shape), -0.0).to(dtype)
    assert given["mask"].any()
    assert not given["mask"].all()

    def results(mask: Tensor) -> list[Tensor]:
        leaves = leaves_of({**given, "mask": None})
        y = triangle_multiply(**{**leaves, "mask": mask})
        return [y, *torch.autograd.grad(y.sum(), [one for one in leaves.values() if _is_floating(one)])]

    with ts.use(mode):
        for found, wanted in zip(results(mask), results(given["mask"]), strict=True):
            assert torch.equal(found, wanted)


@BOTH_WAYS
def test_fully_masked_input_gives_finite_results(mode: Any) -> None:
    given = made()
    given["mask"][:] = False
    with ts.use(mode):
        found = forward_and_backward(triangle_multiply, given)
    assert all(value.isfinite().all() for value in found.values())


def beyond_half_precision() -> Inputs:
    """a and b are about 250 each: one term of x is near the largest float16, and x has four terms."""
    given = {**made(residues=4, channels=4, hidden=4), "mask": None}
    given["projection_weight"] *= 2
    given["projection_bias"] = 250.0 + torch.arange(8.0)
    given["gate_bias"] = torch.full((8,), 20.0)
    return given


@BOTH_WAYS
@pytest.mark.parametrize("chunk", [None, 3])
def test_sums_beyond_float16_do_not_overflow(mode: Any, chunk: int | None) -> None:
    half = {name: one.half() if _is_floating(one) else one for name, one in beyond_half_precision().items()}
    with ts.use(mode):
        ours = triangle_multiply(**half, chunk=chunk)
    assert ours.isfinite().all()
    torch.testing.assert_close(ours.double(), reference(**doubled(half)), rtol=0.02, atol=0.02)


@BOTH_WAYS
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize(("batch", "residues"), [(0, 3), (2, 0)])
def test_empty_input_matches_reference(mode: Any, batch: int, residues: int, chunk: int | None) -> None:
    given = {**made(residues, batch=batch), "chunk": chunk}
    with ts.use(mode):
        found = forward_and_backward(triangle_multiply, given)
    assert_same(found, forward_and_backward(reference, given))


@BOTH_WAYS
def test_single_channel_matches_reference(mode: Any) -> None:
    """A norm over one channel is zero. So z and its norm have no gradient but rounding errors."""
    given = made(residues=1, channels=1, hidden=1)
    with ts.use(mode):
        found = forward_and_backward(triangle_multiply, given)
    expected = forward_and_backward(reference, given)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "residues", "channels", "tf32", "separate_gemms"),
    [
        (torch.float32, 64, 128, False, True),
        (torch.float32, 65, 64, False, True),
        (torch.float32, 5, 128, False, True),
        (torch.float32, 64, 64, False, False),
        (torch.float32, 64, 128, True, False),
        (torch.bfloat16, 64, 128, False, False),
    ],
)
def test_exact_float32_that_is_large_or_wide_uses_separate_gemms(
    dtype: torch.dtype, residues: int, channels: int, tf32: bool, separate_gemms: bool
) -> None:
    given = made(residues, channels=channels, hidden=channels)
    del given["direction"]
    moved = {name: one.to("meta", dtype if _is_floating(one) else None) for name, one in given.items()}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with recorded_plans() as plans:
            triangle_multiply(**moved)
    finally:
        torch.set_float32_matmul_precision(before)
    names = [plan.kernels for plan in plans]
    assert ("triangle_multiply_forward" in names) is not separate_gemms
    assert ("triangle_multiply_gated" in names) is separate_gemms


def test_float64_on_a_gpu_is_left_to_pytorch() -> None:
    class OnGPU(Tensor):
        is_cuda = True

    given = doubled(made())
    z, *others = prepare(*triangle_multiply._bound((), given))
    assert not takes(z.as_subclass(OnGPU), *others)
    assert takes(z, *others)


class TestExact:
    """The separate GEMMs that compute large exact float32, here at any size."""

    @pytest.fixture(autouse=True)
    def at_any_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operator, "MOST_FUSED_EXACT_ELEMENTS", 0)

    @covering(
        sizes=[(3, 4, 3, 2), (17, 7, 37, 1)],
        direction=["outgoing", "incoming"],
        residual=[False, True],
        masked=[True, False],
    )
    def test_matches_float64_within_float32_rounding(
        self, sizes: tuple[int, int, int, int], direction: str, residual: bool, masked: bool
    ) -> None:
        given = {**tame(made(*sizes, direction=direction)), "residual": residual}
        given = given if masked else {**given, "mask": None}
        with ts.use("interpret"):
            found = forward_and_backward(triangle_multiply, given)
        for name, value in forward_and_backward(reference, doubled(given)).items():
            torch.testing.assert_close(found[name].double(), value, rtol=0, atol=1e-5 * float(value.abs().max()))

    @pytest.mark.parametrize("missing", ["projection_bias", "gate_bias", "output_bias", "output_gate_bias"])
    def test_each_bias_is_optional(self, missing: str) -> None:
        given = {**tame(made()), missing: None}
        with ts.use("interpret"):
            found = forward_and_backward(triangle_multiply, given)
        torch.testing.assert_close(found, forward_and_backward(reference, given), rtol=1e-4, atol=1e-4)

    @ADDED
    def test_any_strides_match_contiguous(self, residual: bool) -> None:
        given = {**tame(made()), "residual": residual}
        turned = {name: every_other(one) if _is_floating(one) else one for name, one in given.items()}
        with ts.use("interpret"):
            found = forward_and_backward(triangle_multiply, turned)
        torch.testing.assert_close(found, forward_and_backward(reference, given), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(("batch", "residues"), [(0, 3), (2, 0)])
    def test_empty_input_has_zero_gradients(self, batch: int, residues: int) -> None:
        given = made(residues, batch=batch)
        leaves = leaves_of(given)
        with ts.use("interpret"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(operator, "MOST_FUSED_EXACT_ELEMENTS", -1)
            triangle_multiply(**leaves).sum().backward()
        assert_same(gradients(leaves), {name: torch.zeros_like(one) for name, one in gradients(leaves).items()})

    def test_autocast_computes_in_its_dtype(self) -> None:
        given = made()
        with ts.use("interpret"), torch.autocast("cpu", torch.bfloat16):
            update = triangle_multiply(**given)
            assert update.dtype == torch.bfloat16
            torch.testing.assert_close(triangle_multiply(**given, residual=True), given["z"] + update, rtol=0, atol=0)

    @ADDED_FIRST
    def test_opcheck_accepts_exact_forward(self, residual: bool) -> None:
        arguments = operator.prepare_exact(*triangle_multiply._bound((), {**made(), "residual": residual}))
        with ts.use("interpret"):
            torch.library.opcheck(torch.ops.tilesmith.triangle_multiply_exact_forward, arguments)

    @ADDED_FIRST
    def test_compiles_to_one_graph(self, residual: bool) -> None:
        torch._dynamo.reset()
        given = {**made(direction="incoming"), "residual": residual}
        with ts.use("interpret"):
            compiled = torch.compile(triangle_multiply, fullgraph=True, backend="aot_eager")
            assert_same(forward_and_backward(compiled, given), forward_and_backward(triangle_multiply, given))


def tame(given: Inputs) -> Inputs:
    """Return the inputs with small weights: no gate is shut, and gradients are not zero."""
    return {name: one / 4 if name.endswith("weight") and one.ndim == 2 else one for name, one in given.items()}


def every_other(tensor: Tensor) -> Tensor:
    """Return the same numbers with gaps between them."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def gradients(leaves: Inputs) -> dict[str, Tensor]:
    return {name: one.grad for name, one in leaves.items() if _is_floating(one)}


def test_non_adjacent_channels_match_contiguous() -> None:
    given = made()
    z = given["z"].transpose(0, 3).contiguous().transpose(0, 3)
    weight = given["output_weight"].t().contiguous().t()
    with ts.use("interpret"):
        found = forward_and_backward(triangle_multiply, {**given, "z": z, "output_weight": weight})
    right = forward_and_backward(reference, given)
    for name, value in right.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"z": torch.ones(3, 3, 4)}, ValueError, r"z has shape \(3, 3, 4\), but must be \[batch, n, n, channels\]"),
        (
            {"z": torch.ones(1, 2, 3, 4)},
            ValueError,
            r"z has shape \(1, 2, 3, 4\), but must be \[batch, n, n, channels\]",
        ),
        ({"direction": "up"}, ValueError, "direction is 'up', but must be one of outgoing, incoming"),
        ({"mask": torch.ones(1, 3, 3) + 0j}, TypeError, "mask has dtype complex64, but must be bool"),
        ({"mask": torch.ones(1, 3, 2) > 0}, ValueError, r"mask has shape \(1, 3, 2\), but must be \[batch, n, n\]"),
        ({"output_weight": torch.ones(5, 3)}, ValueError, r"output_weight has shape \(5, 3\), but must have 4 rows"),
        ({"gate_weight": torch.ones(6, 3)}, ValueError, r"gate_weight has shape \(6, 3\), but must have \(6, 4\)"),
        ({"norm_bias": torch.ones(3)}, ValueError, r"norm_bias has shape \(3,\), but must have \(4,\)"),
        ({"gate_bias": torch.ones(6).half()}, TypeError, "gate_bias has dtype float16, but z has float32"),
        ({"norm_weight": None}, TypeError, "norm_weight is a NoneType, but must be a tensor"),
        ({"eps": -1.0}, ValueError, "eps is -1.0, but must be at least 0"),
        ({"output_weight": torch.ones(4, 0)}, ValueError, r"output_weight has shape \(4, 0\)"),
        ({"residual": None}, TypeError, "residual is a NoneType, but must be True or False"),
        ({"chunk": 0}, ValueError, "chunk is 0, but must be at least 1"),
        ({"chunk": 1.5}, TypeError, "chunk is a float, but must be a whole number or None"),
        ({"chunk": 2, "direction": "up"}, ValueError, "direction is 'up', but must be one of outgoing, incoming"),
    ],
)
def test_bad_input_raises_error_that_names_it(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^triangle_multiply: {words}"):
        triangle_multiply(**{**made(), **arguments})


class TestChunks:
    @DIRECTIONS
    @ADDED
    @pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
    @pytest.mark.parametrize(("residues", "chunk"), [(1, 1), (1, 4), (5, 1), (5, 2), (6, 3), (7, 7), (7, 100)])
    def test_chunked_equals_unchunked_in_float64(
        self, direction: str, residual: bool, masked: bool, residues: int, chunk: int
    ) -> None:
        given = {**doubled(made(residues, batch=2, direction=direction)), "residual": residual}
        given = given if masked else {**given, "mask": None}
        whole = forward_and_backward(triangle_multiply, given)
        assert_same(forward_and_backward(triangle_multiply, {**given, "chunk": chunk}), whole)

    @DIRECTIONS
    def test_chunked_kernels_match_fused_kernels(self, direction: str) -> None:
        given = made(3, batch=2, direction=direction)
        with ts.use("interpret"):
            whole = forward_and_backward(triangle_multiply, given)
            found = forward_and_backward(triangle_multiply, {**given, "chunk": 2})
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("missing", ["projection_bias", "gate_bias", "output_bias", "output_gate_bias"])
    def test_each_bias_is_optional(self, missing: str) -> None:
        given = doubled(made())
        whole = forward_and_backward(triangle_multiply, {**given, missing: None})
        assert_same(forward_and_backward(triangle_multiply, {**given, missing: None, "chunk": 2}), whole)

    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str
    )
    def test_error_is_within_the_rule_in_every_precision(self, dtype: torch.dtype) -> None:
        assert_within_the_rule(Case("incoming", batch=1, residues=3, channels=9, hidden=8), dtype, "cpu", chunk=2)

    @pytest.mark.parametrize("layer", ["projection", "gate", "output", "output_gate"])
    def test_gradients_are_summed_before_they_are_rounded(self, layer: str) -> None:
        given = made(24, channels=8, hidden=8)
        half = {name: one.half() if _is_floating(one) else one for name, one in given.items()}
        many, one = (forward_and_backward(triangle_multiply, {**half, "chunk": chunk}) for chunk in (1, 24))
        for name in (f"gradient of {layer}_weight", f"gradient of {layer}_bias"):
            largest = float(one[name].abs().max())
            torch.testing.assert_close(many[name], one[name], rtol=2.0**-10, atol=1e-5 * largest)

    @ADDED_FIRST
    def test_opcheck_accepts_chunked_forward_and_backward(self, residual: bool) -> None:
        given = {**made(), "chunk": 2, "residual": residual}
        arguments = prepare_for_chunks(*triangle_multiply._bound((), given))
        torch.library.opcheck(torch.ops.tilesmith.triangle_multiply_chunked_forward, arguments)
        torch.library.opcheck(
            torch.ops.tilesmith.triangle_multiply_chunked_backward, (torch.randn_like(arguments[0]), *arguments)
        )

    def test_compiles_to_one_graph(self) -> None:
        torch._dynamo.reset()
        given = {**made(5, direction="incoming"), "chunk": 2}
        compiled = torch.compile(triangle_multiply, fullgraph=True, backend="aot_eager")
        assert_same(forward_and_backward(compiled, given), forward_and_backward(triangle_multiply, given))

    def test_torch_func_grad_ignores_chunk(self) -> None:
        given = made()

        def loss(z: Tensor, chunk: int | None = None) -> Tensor:
            return triangle_multiply(**{**given, "z": z, "chunk": chunk}).sin().sum()

        found = torch.func.grad(lambda z: loss(z, chunk=2))(given["z"])
        torch.testing.assert_close(found, torch.func.grad(loss)(given["z"]))

    def test_autocast_to_float16_does_not_overflow(self) -> None:
        given = beyond_half_precision()
        leaves = leaves_of(given)
        with torch.autocast("cpu", torch.float16):
            y = triangle_multiply(**leaves, chunk=3)
        y.sum().backward()
        assert y.dtype == torch.float16
        assert leaves["z"].grad.dtype == torch.float32
        half = {name: one.half() if _is_floating(one) else one for name, one in given.items()}
        torch.testing.assert_close(y.detach(), triangle_multiply(**half, chunk=3), rtol=0, atol=0)


def assert_within_the_rule(case: Case, dtype: torch.dtype, device: str, chunk: int) -> None:
    """Assert that errors are within the rule for every operator."""

    def make_inputs(case: Case, dtype: torch.dtype, device: str) -> Inputs:
        return {**SPEC.inputs(case, dtype, device), "chunk": chunk}

    results = run(Trial(replace(SPEC, make_inputs=make_inputs), case, dtype, CONTIGUOUS, device))
    assert len(results) == 14  # the result, and the gradients of z and twelve parameters
    assert not [result for result in results if not result.passed]


class Allocations(TorchDispatchMode):
    """Records the number of elements of each new allocation."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        old = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in old:
                self.sizes.append(one.untyped_storage().nbytes() // one.itemsize)
        return result


class TestMemoryOfChunks:
    RESIDUES, CHANNELS = 32, 8
    PAIRS = RESIDUES**2 * CHANNELS

    def of_pairs(self, allocations: Allocations) -> int:
        """Return how many allocations are as large as z. All others must be at most a few rows of z."""
        assert not [size for size in allocations.sizes if self.PAIRS // 4 < size < self.PAIRS or size > self.PAIRS]
        return sum(size == self.PAIRS for size in allocations.sizes)

    @DIRECTIONS
    def test_only_operands_and_results_are_as_large_as_z(self, direction: str) -> None:
        given = made(self.RESIDUES, self.CHANNELS, self.CHANNELS, direction=direction)
        arguments = prepare_for_chunks(*triangle_multiply._bound((), {**given, "chunk": 2, "residual": True}))
        dy = torch.ones_like(given["z"])
        with Allocations() as forward:
            compute_forward(*arguments)
        with Allocations() as backward:
            compute_backward(dy, *arguments)
        assert self.of_pairs(forward) == 2, "y and b"
        assert self.of_pairs(backward) == 4, "dz, dx, b, and a after b is freed"

    def test_forward_keeps_only_the_arguments(self) -> None:
        leaves = leaves_of(made(self.RESIDUES))
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):  # type: ignore[func-returns-value]
            triangle_multiply(**leaves, chunk=8)
        given = {one.data_ptr() for one in leaves.values() if isinstance(one, Tensor)}
        assert {one.data_ptr() for one in kept} == given


@pytest.mark.parametrize(
    ("name", "residues"),
    [*(pytest.param("odd", one, marks=pytest.mark.slow) for one in (16, 17)), ("incoming", 17)],
    ids=str,
)
def test_gradients_match_float64_where_memory_is_reused(name: str, residues: int) -> None:
    case = Case(name, batch=1, residues=residues, channels=8, hidden=8)
    with ts.use("interpret"):
        results = run(Trial(SPEC, case, torch.float32, CONTIGUOUS, "cpu"))
    assert len(results) == 14  # the result, and the gradients of z and twelve parameters
    assert not [result for result in results if not result.passed]


@pytest.mark.parametrize(("residues", "channels", "hidden", "most"), [(32, 16, 16, 10), (31, 16, 16, 12)])
def test_backward_reuses_memory_it_no_longer_needs(residues: int, channels: int, hidden: int, most: int) -> None:
    """In sizes of z: five for projections and gates, dx, zn, dz, do and xn. da and db take the memory of do and xn,
    unless rows of matrices are padded."""
    given = {
        name: one.to(torch.bfloat16 if one.is_floating_point() else one.dtype).to("meta")
        if isinstance(one, Tensor)
        else one
        for name, one in made(residues, channels, hidden).items()
    }
    leaves = leaves_of(given)
    with recorded_plans("cuda:90") as plans:
        triangle_multiply(**leaves).backward(torch.empty_like(leaves["z"]))
    backward = plans[-1]
    of_pairs = given["z"].numel()
    taken = sum(prod(buffer.shape) for buffer in backward._buffers if buffer.dtype == torch.bfloat16)
    assert most * of_pairs <= taken < (most + 0.5) * of_pairs


def assert_in_chunks(launched: list[str]) -> None:
    """Chunks are norms and products, without the kernels that compute all rows at once."""
    assert any(name.startswith("layer_norm_") for name in launched)
    assert not any(name.startswith("triangle_") for name in launched)


@pytest.mark.gpu
class TestChunksOnGPU:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("name", ["odd", "incoming"])
    def test_error_is_within_the_rule(self, dtype: torch.dtype, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        launched = names_launched(monkeypatch)
        with ts.use("triton"):
            assert_within_the_rule(Case(name, batch=2, residues=131, channels=64, hidden=48), dtype, "cuda", chunk=32)
        assert_in_chunks(launched)

    def test_chunks_take_less_than_half_of_the_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """4 times z against 14, besides z and dy: y, dz, dx and b, and 16 of 512 rows of intermediate results."""
        launched = names_launched(monkeypatch)
        case = SPEC.case("n512")
        given = leaves_of(SPEC.inputs(case, torch.bfloat16, "cuda"))
        dy, taken = torch.randn_like(given["z"]), {}
        with ts.use("triton"):
            for chunk in (None, 16, None, 16):  # the first time also allocates for compilation and libraries
                for one in given.values():
                    if _is_floating(one):
                        one.grad = None
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                launched.clear()
                triangle_multiply(**given, chunk=chunk).backward(dy)
                if chunk is None:
                    assert any(name.startswith("triangle_") for name in launched)
                else:
                    assert_in_chunks(launched)
                taken[chunk] = torch.cuda.max_memory_allocated() - before
        assert taken[16] < 6 * dy.nbytes
        assert taken[None] > 2 * taken[16]
