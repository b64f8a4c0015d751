# mypy: disable-error-code="no-untyped-call"
# PyTorch types its rarer functions not at all.
"""triangle_multiply with specialised warps: when it is chosen, its sums, and on such a GPU that it is right."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from differentiation import assert_same, forward_and_backward, leaves_of
from on_hopper import names_launched, only_on_hopper
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan, PlannedLaunch
from tilesmith.ops.triangle_multiply import triangle_multiply
from tilesmith.ops.triangle_multiply.hopper import forward as hopper_forward
from tilesmith.ops.triangle_multiply.hopper import launch as hopper_launch
from tilesmith.ops.triangle_multiply.hopper.weight_gradients import plan_moments, plan_weight_gradients
from tilesmith.ops.triangle_multiply.parameters import Parameters
from tilesmith.ops.triangle_multiply.problem import Problem
from tilesmith.ops.triangle_multiply.reference import reference
from tilesmith.spec import Inputs
from tilesmith.toolchain.compiler import Target, compile_kernel

KINDS = ("project", "output", "output_gradient", "project_gradient")
HOPPER = {f"triangle_{kind}_hopper_kernel" for kind in KINDS}
PORTABLE = {f"triangle_{kind}_kernel" for kind in KINDS}
GRADIENTS = {name for name in HOPPER | PORTABLE if "gradient" in name}
BIASES = ("projection_bias", "gate_bias", "output_bias", "output_gate_bias")
TRANSPOSED = (0, 2, 1, 3)


def made(
    residues: int, batch: int = 1, direction: str = "outgoing", device: str = "meta", biased: bool = True,
    dtype: torch.dtype = torch.bfloat16, channels: int = 128, hidden: int = 128,
) -> Inputs:  # fmt: skip
    """Return inputs whose mask leaves out a row, a column, and a fifth of the other pairs."""
    torch.manual_seed(0)
    shapes = {
        "norm_weight": (channels,), "norm_bias": (channels,),
        "projection_weight": (2 * hidden, channels), "gate_weight": (2 * hidden, channels),
        "output_norm_weight": (hidden,), "output_norm_bias": (hidden,),
        "output_weight": (channels, hidden), "output_gate_weight": (channels, channels),
    }  # fmt: skip
    if biased:
        lengths = (2 * hidden, 2 * hidden, channels, channels)
        shapes |= {name: (length,) for name, length in zip(BIASES, lengths, strict=True)}
    given: Inputs = {"z": torch.randn(batch, residues, residues, channels, device=device, dtype=dtype)}
    for name, shape in shapes.items():
        one = torch.randn(shape, device=device) * (shape[-1] ** -0.5 if len(shape) == 2 else 0.25)
        given[name] = (one + 1 if name.endswith("norm_weight") else one).to(dtype)
    mask = torch.ones(batch, residues, residues, device=device, dtype=torch.bool)
    if device != "meta":
        mask &= torch.rand(mask.shape, device=device) > 0.2
        mask[:, residues // 3] = False
        mask[:, :, residues - 1] = False
    return {**given, "mask": mask, "direction": direction}


def planned(given: Inputs, target: str = "cuda:90", dy: Tensor | None = None) -> list[Plan]:
    leaves = leaves_of(given)
    with recorded_plans(target) as plans:
        triangle_multiply(**leaves).backward(torch.empty_like(leaves["z"]) if dy is None else dy)
    return plans


def launches(plans: list[Plan]) -> list[PlannedLaunch]:
    return [launch for plan in plans for launch in plan.launches]


def names_of(plans: list[Plan]) -> set[str]:
    return {launch.kernel.__name__ for launch in launches(plans)} & (HOPPER | PORTABLE)


class TestForms:
    @pytest.mark.parametrize("direction", ["outgoing", "incoming"])
    @pytest.mark.parametrize("biased", [False, True])
    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("residues", [64, 131])
    def test_bf16_of_128_channels_uses_hopper_kernels(
        self, residues: int, masked: bool, biased: bool, direction: str
    ) -> None:
        given = made(residues, 2, direction, biased=biased)
        given = given if masked else {**given, "mask": None}
        assert names_of(planned(given)) == HOPPER

    @pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
    def test_other_gpus_use_portable_kernels(self, target: str) -> None:
        assert names_of(planned(made(64), target)) == PORTABLE

    @pytest.mark.parametrize(
        "other",
        [
            {"dtype": torch.float16}, {"dtype": torch.float32, "residues": 32, "channels": 64}, {"channels": 64},
            {"hidden": 64}, {"residues": hopper_launch.LEAST_RESIDUES - 1},
        ],
        ids=str,
    )  # fmt: skip
    def test_other_sizes_and_dtypes_use_portable_kernels(self, other: dict[str, Any]) -> None:
        assert names_of(planned(made(**{"residues": 64, **other}))) == PORTABLE

    def test_gradient_that_tma_cannot_read_uses_portable_backward(self) -> None:
        given = made(64)
        found = names_of(planned(given, dy=given["z"].new_empty(1, 1, 1, 128).expand_as(given["z"])))
        assert found == (HOPPER - GRADIENTS) | (PORTABLE & GRADIENTS)

    def test_transposed_pairs_use_hopper_kernels(self) -> None:
        given = made(64)
        assert names_of(planned({**given, "z": given["z"].permute(TRANSPOSED)})) == HOPPER

    def test_weights_with_gaps_are_copied_for_hopper_kernels(self) -> None:
        given = made(64)
        weight = given["gate_weight"]
        assert names_of(planned({**given, "gate_weight": weight.new_empty(256, 136)[:, :128]})) == HOPPER
        assert names_of(planned({**given, "gate_weight": weight.t().contiguous().t()})) == HOPPER

    def test_interpreter_uses_portable_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hopper_launch, "LEAST_RESIDUES", 2)
        given = made(2, device="cpu")
        with ts.use("interpret"):
            ours = triangle_multiply(**given)
        torch.testing.assert_close(ours.float(), reference(**given).float(), atol=0.05, rtol=0.05)


def test_backward_takes_ten_times_the_memory_of_z() -> None:
    """Five for projections and gates, dx, zs, dz, do and xs. da and db take the memory of do and xs; the gradient of zn
    starts in that of dz."""
    given = made(256)
    backward = planned(given)[-1]
    taken = sum(prod(buffer.shape) * buffer.element_bytes for buffer in backward._buffers)
    assert 10 * given["z"].nbytes <= taken < 11 * given["z"].nbytes


@pytest.mark.parametrize(
    ("biased", "masked"), [(True, True), (True, False), (False, True), (False, False)]
)  # fmt: skip
@pytest.mark.slow  # the test of every operator compiles the usual form
def test_hopper_kernels_do_not_spill(biased: bool, masked: bool) -> None:
    given = made(130, biased=biased)
    given = given if masked else {**given, "mask": None}
    of_hopper = [launch for launch in launches(planned(given)) if launch.kernel.__name__ in HOPPER]
    assert len(of_hopper) == 4
    for launch in of_hopper:
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0, launch.kernel.__name__
        assert binary.shared_bytes <= 227 * 1024
        assert binary.num_warps == launch.config.all_warps


@pytest.mark.parametrize("multiprocessors", [1, 12, 40], ids=["one split", "several", "more than steps"])
@pytest.mark.parametrize("block", [16, 32])
def test_parameter_gradients_match_autograd(block: int, multiprocessors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From gradients of projections and standard rows. The last tiles of pairs and of outputs are not full."""
    monkeypatch.setattr(Plan, "multiprocessors", multiprocessors)
    torch.manual_seed(0)
    width = 16
    tensors = [
        torch.randn(shape).bfloat16().float()  # the kernels multiply bf16; other float32 would be rounded to tf32
        for shape in (
            (2, 5, 5, width), (width,), (width,), (2 * width, width), (2 * width, width), (width,), (width,),
            (width, width), (width, width), (2, 5, 5, 5 * width), (2, 5, 5, width), (2, 5, 5, width), (2, 5, 5, width),
        )
    ]  # fmt: skip
    plan = Plan("sums", torch.device("cpu"), tensors)
    operands: list[Any] = list(plan.operands)
    z, weight, bias, projection, gate, out_weight, out_bias, output, output_gate, d, zs, do, xs = operands
    parameters = Parameters(
        norm_weight=weight, norm_bias=bias, projection_weight=projection, projection_bias=None, gate_weight=gate,
        gate_bias=None, output_norm_weight=out_weight, output_norm_bias=out_bias, output_weight=output,
        output_bias=None, output_gate_weight=output_gate, output_gate_bias=None,
    )  # fmt: skip
    problem = Problem(z, None, parameters, outgoing=True, eps=1e-5, tf32=False)
    with ts.use("interpret"), ts.ops.configured(BLOCK_OUTPUTS=block, PAIRS=16, SPLITS=2, ROWS=block):
        moments, output_moments = plan_moments(plan, problem, d, zs), plan_moments(plan, problem, do, xs)
        plan.outputs = plan_weight_gradients(plan, problem, moments, output_moments)
        dweights, doutput_weight, dvectors = plan.run(tensors)

    _, *leaves = (one.double().requires_grad_() for one in tensors[:9])
    weight, bias, projection, gate, out_weight, out_bias, output, output_gate = leaves
    d, zs, do, xs = (one.double().flatten(0, 2) for one in tensors[9:])
    made_of_zn = (zs * weight + bias) @ torch.cat([projection, gate, output_gate]).t()
    made_of_xn = (xs * out_weight + out_bias) @ output.t()
    dweight, dbias, dprojection, dgate, dout_weight, dout_bias, doutput, doutput_gate = torch.autograd.grad(
        [made_of_zn, made_of_xn], leaves, [d, do]
    )
    of_projection, of_gate, of_output_gate = d.sum(0).split((2 * width, 2 * width, width))
    vectors = dout_weight, dout_bias, do.sum(0), of_output_gate, dweight, dbias, of_projection, of_gate
    torch.testing.assert_close(dvectors.double(), torch.cat(vectors), rtol=1e-4, atol=1e-4)
    right = torch.cat([dprojection, dgate, doutput_gate])
    torch.testing.assert_close(dweights.double(), right, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(doutput_weight.double(), doutput, rtol=1e-4, atol=1e-4)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of kernels as they are launched on Hopper. Any number of residues suits the Hopper kernels."""
    only_on_hopper()
    monkeypatch.setattr(hopper_launch, "LEAST_RESIDUES", 1)
    dispatch.forget()
    return names_launched(monkeypatch)


def errors(found: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, float]:
    """Return the relative error of each result, or the absolute error where the right result is zero."""
    assert all(value.isfinite().all() for value in found.values())
    wrong = {name: float((found[name].double() - value).norm()) for name, value in right.items()}
    return {name: wrong[name] / (float(value.norm()) or 1.0) for name, value in right.items()}


SIZES = [(1, 1), (1, 37), (2, 64), (3, 65), (1, 130), (1, 192), (1, 260), (6, 70)]


@pytest.mark.gpu
class TestOnGPU:
    @pytest.mark.parametrize("sizes", SIZES, ids=str)
    @pytest.mark.parametrize("direction", ["outgoing", "incoming"])
    @pytest.mark.parametrize("kind", ["masked", "biased", "masked and biased", "transposed"])
    def test_error_is_within_twice_that_of_portable_kernels(
        self, sizes: tuple[int, int], direction: str, kind: str, launched: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch, residues = sizes
        given = made(residues, batch, direction, "cuda", biased="biased" in kind)
        if "masked" not in kind:
            given["mask"] = None
        if kind == "transposed":
            given["z"] = given["z"].permute(TRANSPOSED)
        doubled = {name: one.double() if is_floating(one) else one for name, one in given.items()}
        right = forward_and_backward(reference, doubled)
        with ts.use("triton"):
            ours = forward_and_backward(triangle_multiply, given)
            assert set(launched) & (HOPPER | PORTABLE) == HOPPER
            launched.clear()
            monkeypatch.setattr(hopper_launch, "LEAST_RESIDUES", 1 << 30)
            dispatch.forget()
            portable = forward_and_backward(triangle_multiply, given)
            assert set(launched) & (HOPPER | PORTABLE) == PORTABLE
        dispatch.forget()
        allowed = errors(portable, right)
        for name, error in errors(ours, right).items():
            assert error <= 2 * allowed[name] + 1e-3, name

    def test_masked_pairs_do_not_influence_others(self, launched: list[str]) -> None:
        given = made(100, 2, device="cuda")
        mask = given["mask"]
        other = {**given, "z": torch.where(mask[..., None], given["z"], float("nan"))}
        with ts.use("triton"):
            right, ours = triangle_multiply(**given), triangle_multiply(**other)
        assert set(launched) & (HOPPER | PORTABLE) == HOPPER - GRADIENTS
        assert torch.equal(right[mask], ours[mask])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
    def test_mask_of_numbers_leaves_out_zeros(self, dtype: torch.dtype, launched: list[str]) -> None:
        given = made(100, 2, device="cuda")
        mask, leaves = given["mask"], leaves_of({**given, "mask": None})
        wanted = [one for one in leaves.values() if is_floating(one)]
        both = []
        for one in (mask, torch.where(mask, 3.0, -0.0).to(dtype)):
            with ts.use("triton"):
                y = triangle_multiply(**{**leaves, "mask": one})
                both.append([y, *torch.autograd.grad(y, wanted, given["z"])])
        assert all(torch.equal(*pair) for pair in zip(*both, strict=True))
        assert set(launched) & (HOPPER | PORTABLE) == HOPPER

    def test_every_run_gives_the_same_bits(self, launched: list[str]) -> None:
        given = made(200, 2, device="cuda")
        with ts.use("triton"):
            first = forward_and_backward(triangle_multiply, given)
            for _ in range(5):
                again = forward_and_backward(triangle_multiply, given)
                assert all(torch.equal(one, again[name]) for name, one in first.items())
        assert set(launched) & (HOPPER | PORTABLE) == HOPPER

    def test_captured_graph_gives_the_same_bits_at_every_replay(self, launched: list[str]) -> None:
        given = leaves_of(made(130, device="cuda"))
        wanted = [one for one in given.values() if is_floating(one)]
        dy = torch.randn_like(given["z"])
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with ts.use("triton"), torch.cuda.stream(stream):
            right = torch.autograd.grad(triangle_multiply(**given), wanted, dy)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                captured = torch.autograd.grad(triangle_multiply(**given), wanted, dy)
            for _ in range(3):
                for one in captured:
                    one.fill_(float("nan"))
                graph.replay()
                torch.cuda.synchronize()
                assert all(torch.equal(one, other) for one, other in zip(captured, right, strict=True))
        assert set(launched) >= HOPPER

    def test_compiles_to_one_graph(self, launched: list[str]) -> None:
        torch._dynamo.reset()
        given = made(70, direction="incoming", device="cuda")
        with ts.use("triton"):
            compiled = torch.compile(triangle_multiply, fullgraph=True, backend="aot_eager")
            assert_same(forward_and_backward(compiled, given), forward_and_backward(triangle_multiply, given))
        assert set(launched) >= HOPPER

    @pytest.mark.parametrize("both_at_once", [False, True])
    def test_projections_match_float64_whether_products_overlap_or_not(
        self, both_at_once: bool, launched: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with Triton before 3.9, and since."""
        monkeypatch.setattr(hopper_forward, "copies_left_operands", lambda: not both_at_once)
        dispatch.forget()
        given = made(130, device="cuda")
        with ts.use("triton"):
            ours = triangle_multiply(**given)
        dispatch.forget()
        right = reference(**{name: one.double() if is_floating(one) else one for name, one in given.items()})
        assert errors({"y": ours}, {"y": right})["y"] < 1e-2
        assert "triangle_project_hopper_kernel" in launched


def is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
