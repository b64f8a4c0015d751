"""Attention over a grid: directions, masks, the gate, and what is refused; the rest is tested for every operator."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import pytest
import torch
from differentiation import assert_same, forward_and_backward
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops.attention.device.score_gradients import MOST_BYTES, MOST_BYTES_OF_SUMS, spans
from tilesmith.ops.attention.kernels.short import LONGEST
from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.msa_column_attention import msa_column_attention
from tilesmith.ops.msa_row_attention import msa_row_attention
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_attention import triangle_attention
from tilesmith.ops.triangle_attention.operator import backward, forward
from tilesmith.spec import Inputs
from tilesmith.toolchain.compiler import Target, compile_kernel

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])
SIDES = pytest.mark.parametrize("starting", [True, False], ids=["starting", "ending"])
OPERATORS: dict[str, Operator[..., Tensor]] = {
    "starting": triangle_attention, "row": msa_row_attention, "column": msa_column_attention,
}  # fmt: skip


def made(rows: int = 3, columns: int = 3, batch: int = 1, heads: int = 1, head: int = 4) -> Inputs:
    torch.manual_seed(0)
    grid = (batch, rows, columns, heads, head)
    q, k, v, gate = (torch.randn(grid) for _ in range(4))
    return {
        "q": q, "k": k, "v": v, "bias": torch.randn(batch, heads, columns, columns),
        "mask": torch.rand(batch, rows, columns) > 0.3, "gate": gate,
    }  # fmt: skip


def attended(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """One query with its keys, for a single head."""
    if not mask.any():
        return torch.zeros_like(q)
    scores = (keys @ q * q.shape[0] ** -0.5 + bias)[mask]
    return torch.softmax(scores, 0) @ values[mask]


@BOTH_WAYS
@SIDES
def test_is_what_the_published_algorithms_say(mode: Any, starting: bool) -> None:
    """Pair by pair: the third edge of ij and ik is jk, that of ij and kj is ki."""
    inputs = made()
    with ts.use(mode):
        ours = triangle_attention(**inputs, starting=starting)
    q, k, v = (inputs[name][0, :, :, 0] for name in "qkv")
    bias, mask, gate = inputs["bias"][0, 0], inputs["mask"][0], inputs["gate"][0, :, :, 0].sigmoid()
    for i in range(3):
        for j in range(3):
            if starting:
                wanted = attended(q[i, j], k[i], v[i], bias[j], mask[i])
            else:
                wanted = attended(q[i, j], k[:, j], v[:, j], bias[:, i], mask[:, j])
            torch.testing.assert_close(ours[0, i, j, 0], gate[i, j] * wanted, rtol=1e-4, atol=1e-5)


@BOTH_WAYS
def test_the_ending_node_is_the_starting_node_of_transposed_pairs(mode: Any) -> None:
    inputs = made(batch=2)
    turned = {name: value.transpose(1, 2) for name, value in inputs.items() if name != "bias"}
    with ts.use(mode):
        ours = triangle_attention(**inputs, starting=False)
        other = triangle_attention(**turned, bias=inputs["bias"].transpose(-1, -2)).transpose(1, 2)
    torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)


def test_the_attentions_of_an_alignment_are_those_of_pairs() -> None:
    inputs = made(rows=2)
    torch.testing.assert_close(msa_row_attention(**inputs), triangle_attention(**inputs), rtol=0, atol=0)
    del inputs["bias"]
    column = msa_column_attention(**inputs)
    torch.testing.assert_close(column, triangle_attention(**inputs, starting=False), rtol=0, atol=0)


@SIDES
def test_nothing_is_copied(starting: bool) -> None:
    """The one launch is given the very arguments, of which these are the first, and writes the output itself."""
    inputs = made(batch=2)
    names = ["q", "k", "v", "bias", "mask"]
    plan = forward.plan_for(*(inputs[name] for name in names), starting, None, False, False)
    (launch,) = plan.launches
    given: dict[str, Any] = {name: getattr(one, "base", one) for name, one in launch.arguments.items()}
    assert [given[f"{name}_ptr"].slot for name in names] == [0, 1, 2, 3, 4]
    assert given["output_ptr"].slot == plan.outputs[0].slot


@SIDES
@pytest.mark.parametrize(
    ("heads", "head", "length"), [(2, 8, 8), (2, 9, 5), (1, 8, 40)], ids=["described", "by pointers", "long"]
)
def test_a_batch_is_its_members_one_by_one(heads: int, head: int, length: int, starting: bool) -> None:
    """Each with a bias and a mask of its own. Long ones have a kernel more, since one block does not hold all keys."""
    inputs = made(rows=2, columns=length, batch=3, heads=heads, head=head)
    if not starting:
        inputs = {name: one if name == "bias" else one.transpose(1, 2) for name, one in inputs.items()}

    def one_by_one(**named: Any) -> Tensor:
        members = ({name: one[n : n + 1] for name, one in named.items()} for n in range(3))
        return torch.cat([triangle_attention(**member, starting=starting) for member in members])

    with ts.use("interpret"):
        together = forward_and_backward(partial(triangle_attention, starting=starting), inputs)
    members = forward_and_backward(one_by_one, inputs)
    assert {"output 0", *(f"gradient of {name}" for name in ("q", "k", "v", "bias", "gate"))} == set(together)
    torch.testing.assert_close(together, members, rtol=1e-4, atol=1e-5)


@SIDES
def test_a_call_makes_one_launch_of_each_kernel_whatever_the_batch(starting: bool) -> None:
    inputs = {
        name: one.to("meta").requires_grad_(one.is_floating_point())
        for name, one in made(rows=80, columns=80, batch=4).items()
    }
    with recorded_plans() as plans:
        triangle_attention(**inputs, starting=starting).sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    launched = [[launch.kernel.__name__ for launch in plan.launches] for plan in plans]
    assert {f"attention_{kind}_kernel" for kind in ("forward", "dq", "dkdv", "dbias")} < {
        name for names in launched for name in names
    }
    assert all(len(set(names)) == len(names) for names in launched)


@SIDES
@pytest.mark.parametrize("batch", [1, 2])
def test_the_output_and_its_gradients_lie_as_their_tensors_do(batch: int, starting: bool) -> None:
    """Computed as well as promised, which is what a tracer goes by."""
    inputs = made(rows=3, columns=3, batch=batch, heads=2)
    for name in ("q", "k", "v"):  # as [batch, heads, rows, columns, head size] in memory
        inputs[name] = inputs[name].permute(0, 3, 1, 2, 4).contiguous().permute(0, 2, 3, 1, 4)
    strides = inputs["q"].stride()
    assert not inputs["q"].is_contiguous()
    tensors = [inputs[name] for name in ("q", "k", "v", "bias", "mask")]
    with ts.use("interpret"):
        output, lse = forward(*tensors, starting, None, False, False)
        gradients = backward(torch.ones_like(output), output, lse, True, *tensors, starting, None, False, False)
    promised, _ = forward.fake(*tensors, starting, None, False, False)
    promised_gradients = backward.fake(output, output, lse, True, *tensors, starting, None, False, False)
    for one in (output, promised, *gradients[:3], *promised_gradients[:3]):
        assert one.stride() == strides


@BOTH_WAYS
@pytest.mark.parametrize("name", OPERATORS)
def test_masked_places_have_no_influence_and_no_gradient(mode: Any, name: str) -> None:
    inputs = made(rows=2, columns=5)
    if name == "column":
        del inputs["bias"]
    hidden = ~inputs["mask"]
    junk = {key: inputs[key].masked_fill(hidden[..., None, None], 50.0) for key in ("k", "v")}
    with ts.use(mode):
        right, ours = (forward_and_backward(OPERATORS[name], {**inputs, **more}) for more in ({}, junk))
    for key, value in right.items():
        torch.testing.assert_close(ours[key], value, rtol=0, atol=0)
    for key in ("gradient of k", "gradient of v"):
        assert not ours[key][hidden].any()
        assert ours[key][~hidden].any()


@BOTH_WAYS
@SIDES
def test_rows_all_masked_get_zeros(mode: Any, starting: bool) -> None:
    inputs = made()
    inputs["mask"][:] = False
    with ts.use(mode):
        found = forward_and_backward(lambda **named: triangle_attention(**named, starting=starting), inputs)
    assert all(not value.any() for value in found.values())


@pytest.mark.parametrize(
    ("mode", "starting"),
    [
        pytest.param("auto", True, id="auto-starting"),
        pytest.param("auto", False, id="auto-ending"),
        pytest.param("interpret", True, id="interpret-starting", marks=pytest.mark.slow),
        pytest.param("interpret", False, id="interpret-ending"),  # the keys lie apart
    ],
)
def test_rows_all_masked_get_the_mean_of_v_if_asked(mode: Any, starting: bool) -> None:
    """As the softmax of equal scores; rows with a key are as ever."""
    inputs = made(rows=34, columns=34, head=5)
    rows = inputs["mask"] if starting else inputs["mask"].transpose(1, 2)
    rows[0, 3] = rows[0, 33] = False

    def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor, gate: Tensor) -> Tensor:
        q, k, v, mask = (one if starting else one.transpose(1, 2) for one in (q, k, v, mask))
        third = bias if starting else bias.mT
        scores = torch.einsum("brqhd,brkhd->brhqk", q, k) * q.shape[-1] ** -0.5 + third[:, None]
        weights = scores.masked_fill(~mask[:, :, None, None], -1e9).softmax(-1)
        found = torch.einsum("brhqk,brkhd->brqhd", weights, v)
        return (found if starting else found.transpose(1, 2)) * gate.sigmoid()

    with ts.use(mode):
        found = forward_and_backward(partial(triangle_attention, starting=starting, mean_without_keys=True), inputs)
    assert_same(found, forward_and_backward(plain, inputs))


@pytest.mark.parametrize("target", ["cuda:90", "cuda:100", "hip:gfx942"])
def test_mean_of_rows_all_masked_compiles(target: str) -> None:
    q = torch.empty(1, 301, 301, 4, 32, dtype=torch.bfloat16, device="meta")
    mask = torch.empty(1, 301, 301, dtype=torch.bool, device="meta")
    with recorded_plans("cuda:90") as plans:
        triangle_attention(q, q, q, mask=mask, mean_without_keys=True)
    launch = plans[0].launches[-1]
    assert launch.kernel.__name__ == "fully_masked_kernel"
    compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())


@BOTH_WAYS
@pytest.mark.parametrize(("batch", "rows", "columns"), [(0, 3, 3), (1, 0, 3), (2, 3, 0)])
def test_empty_grids(mode: Any, batch: int, rows: int, columns: int) -> None:
    inputs = made(rows, columns, batch)
    with ts.use(mode):
        found = forward_and_backward(triangle_attention, inputs)
    assert found["output 0"].shape == inputs["q"].shape
    assert found["gradient of q"].shape == inputs["q"].shape
    assert not any(value.any() for value in found.values() if value is not None)


def test_scale_is_used() -> None:
    inputs = made()
    with ts.use("interpret"):
        ours = forward_and_backward(lambda **named: triangle_attention(**named, scale=2.0), inputs)
    sharper = {**inputs, "q": inputs["q"] * 2.0 * 4**0.5}
    torch.testing.assert_close(ours["output 0"], triangle_attention(**sharper), rtol=1e-4, atol=1e-5)


@BOTH_WAYS
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"q": torch.ones(3, 3, 1, 4)}, ValueError, r"q has shape \(3, 3, 1, 4\), but must be \[batch, "),
        ({"k": torch.ones(1, 3, 3, 1, 5)}, ValueError, r"k has shape \(1, 3, 3, 1, 5\), but q has \(1, 3, 3, 1, 4\)"),
        ({"v": torch.ones(1, 3, 3, 1, 4).half()}, TypeError, "v has dtype float16, but q has float32"),
        ({"gate": torch.ones(1, 3, 3, 4)}, ValueError, r"gate has shape \(1, 3, 3, 4\), but q has"),
        ({"mask": torch.ones(1, 3, 3)}, TypeError, "mask has dtype float32, but must be bool"),
        ({"mask": torch.ones(3, 3) > 0}, ValueError, r"mask has shape \(3, 3\), but must be \[batch, "),
        ({"scale": 0.0}, ValueError, "scale is 0.0, but must be positive and finite"),
        ({"scale": "1"}, TypeError, "scale is a str, but must be a number"),
    ],
)
def test_bad_input(mode: Any, name: str, arguments: Inputs, kind: type[Exception], words: str) -> None:
    operator = OPERATORS[name]
    inputs = made()
    if name == "column":
        del inputs["bias"]
    with ts.use(mode), pytest.raises(kind, match=f"^{operator.name}: {words}"):
        operator(**{**inputs, **arguments})


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"bias": torch.ones(1, 3, 3)}, ValueError, r"bias has shape \(1, 3, 3\), but must be \[batch, heads, length"),
        ({"starting": 1}, TypeError, "starting is a int, but must be True or False"),
        ({"mean_without_keys": 1}, TypeError, "mean_without_keys is a int, but must be True or False"),
    ],
)
def test_bad_input_of_triangles(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^triangle_attention: {words}"):
        triangle_attention(**{**made(), **arguments})


@pytest.mark.parametrize(
    ("length", "strides", "copied"),
    [
        (301, "rows", True),
        (512, "rows", False),
        (512, "columns", True),  # keys are no neighbours
        (72, "rows", False),
        (70, "rows", True),
    ],
)
def test_bias_that_tma_cannot_load_is_copied_once_for_all_sequences(length: int, strides: str, copied: bool) -> None:
    q = torch.empty(1, length, length, 4, 32, dtype=torch.bfloat16, device="meta", requires_grad=True)
    bias = torch.empty(1, 4, length, length, device="meta", requires_grad=True)
    bias = bias.mT if strides == "columns" else bias
    with recorded_plans("cuda:90") as plans:
        output = triangle_attention(q, q, q, bias)
        output.backward(torch.empty_like(output))  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    for plan in plans:
        names = [launch.kernel.__name__ for launch in plan.launches]
        assert ("aligned_bias_kernel" in names) == copied
        reads = [launch for launch in plan.launches if "BIAS_DESCRIBED" in launch.arguments]
        assert reads
        assert all(launch.arguments["BIAS_DESCRIBED"] for launch in reads)


@pytest.mark.parametrize("target", ["cuda:90", "cuda:100", "hip:gfx942"])
def test_copy_of_a_bias_compiles(target: str) -> None:
    q = torch.empty(1, 301, 301, 4, 32, dtype=torch.bfloat16, device="meta")
    with recorded_plans("cuda:90") as plans:
        triangle_attention(q, q, q, torch.empty(1, 4, 301, 301, device="meta"))
    launch = plans[0].launches[0]
    assert launch.kernel.__name__ == "aligned_bias_kernel"
    compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())


@pytest.mark.parametrize("starting", [True, False])
def test_copied_bias_is_the_bias(monkeypatch: pytest.MonkeyPatch, starting: bool) -> None:
    """As on a GPU with TMA, whose descriptors the interpreter follows."""
    monkeypatch.setattr(Problem, "describable", lambda problem, *others: True)
    torch.manual_seed(0)
    inputs: Inputs = {name: torch.randn(2, 19, 19, 2, 16) for name in ("q", "k", "v")}
    inputs["bias"] = torch.randn(2, 2, 19, 19).mT
    with ts.use("interpret"):
        ours = forward_and_backward(partial(triangle_attention, starting=starting), inputs)
    assert_same(ours, forward_and_backward(partial(triangle_attention.reference, starting=starting), inputs))


def test_a_gate_alone_can_be_learned() -> None:
    inputs = made()
    gate = inputs["gate"].requires_grad_()
    with ts.use("interpret"):
        triangle_attention(**inputs).sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    (wanted,) = torch.autograd.grad(triangle_attention(**{**inputs, "gate": gate}).sum(), gate)
    assert gate.grad is not None
    assert_same({"gate": gate.grad}, {"gate": wanted})


class TestInChunks:
    """The backward in half precision where sequences share a bias: ds is stored for a chunk of them at a time."""

    def inputs(self, length: int = 37, *, starting: bool = True, batch: int = 2, head: int = 16) -> Inputs:
        """Five sequences, one of which sees nothing."""
        inputs = made(5, length, batch, heads=2, head=head)
        inputs["mask"][0, 1] = False
        halves = {name: one.half() if one.is_floating_point() else one for name, one in inputs.items()}
        if not starting:
            halves = {name: one if name == "bias" else one.transpose(1, 2) for name, one in halves.items()}
        return halves

    def gradients(self, inputs: Inputs, *, starting: bool = True, **fields: Any) -> dict[str, Tensor]:
        with ts.use("interpret"), ts.ops.configured(**fields):
            return forward_and_backward(partial(triangle_attention, starting=starting), inputs)

    def assert_right(self, found: dict[str, Tensor], inputs: Inputs, starting: bool = True) -> None:
        doubles = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
        right = forward_and_backward(partial(triangle_attention, starting=starting), doubles)
        for name, value in right.items():
            assert (found[name].double() - value).norm() < 6e-4 * value.norm(), name

    @covering(most=[1, 2, 5, 10], starting=[True, False])  # a part of a member, a member, both members
    def test_gradients_are_right_however_many_sequences_a_chunk_has(self, most: int, starting: bool) -> None:
        inputs = self.inputs(starting=starting)
        self.assert_right(self.gradients(inputs, starting=starting, chunk_sequences=most), inputs, starting)

    @pytest.mark.parametrize("described", [True, False])
    def test_tiles_of_every_kernel_end_inside_the_last_block(self, described: bool) -> None:
        """TMA loads these heads, and the length is a whole number of units but no multiple of a block."""
        inputs = self.inputs(40, batch=1)
        fields: dict[str, Any] = {"BLOCK_QUERIES": 16, "BLOCK_KEYS": 32, "BLOCK_SEQUENCES": 2}
        self.assert_right(self.gradients(inputs, chunk_sequences=3, described=described, **fields), inputs)

    def test_shares_that_do_not_divide_a_chunk_take_no_sequence_beyond_it(self) -> None:
        """Three shares, of chunks of three sequences and of two: what the first left of its third lies there still."""
        inputs = self.inputs(batch=1)
        self.assert_right(self.gradients(inputs, chunk_sequences=3, BLOCK_SEQUENCES=1), inputs)

    def test_the_size_of_chunks_changes_no_bit_but_those_of_sums_over_them(self) -> None:
        inputs = self.inputs(batch=1)
        one, many = (self.gradients(inputs, chunk_sequences=most) for most in (5, 2))
        for name in ("q", "k", "v"):
            torch.testing.assert_close(one[f"gradient of {name}"], many[f"gradient of {name}"], rtol=0, atol=0)

    def test_keys_beyond_the_last_have_no_part_in_dq_however_low_the_scores(self) -> None:
        """Their weights, which nobody masks for dk and dv, overflow."""
        inputs = self.inputs()
        del inputs["mask"]
        inputs["bias"] -= 500.0
        found = self.gradients(inputs, chunk_sequences=2)
        assert all(value.isfinite().all() for value in found.values())

    @pytest.mark.parametrize(("batch", "rows", "columns"), [(0, 3, 3), (1, 0, 3), (2, 3, 0), (1, 1, 3)])
    def test_empty_grids_and_a_single_sequence(self, batch: int, rows: int, columns: int) -> None:
        inputs = {name: one.half() if name != "mask" else one for name, one in made(rows, columns, batch).items()}
        found = self.gradients(inputs, chunk_sequences=2)
        assert found["gradient of bias"].shape == inputs["bias"].shape

    @pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 8, 9, 24, 100])
    def test_chunks_have_every_sequence_once_and_parts_of_one_bias_alone(self, most: int) -> None:
        chunks = [range(first, first + count) for first, count in spans(24, 8, most)]
        assert [sequence for chunk in chunks for sequence in chunk] == list(range(24))
        assert max(map(len, chunks)) <= most
        for chunk in chunks:
            assert len(chunk) % 8 == 0 or len({sequence // 8 for sequence in chunk}) == 1

    def planned(
        self, length: int, dtype: torch.dtype = torch.bfloat16, bias_learns: bool = True, batch: int = 1
    ) -> Plan:
        """The backward for triangles of four heads."""
        grid = torch.empty(batch, length, length, 4, 32, device="meta", dtype=dtype)
        q, k, v = (grid.clone().requires_grad_() for _ in range(3))
        bias = torch.empty(batch, 4, length, length, device="meta", dtype=dtype, requires_grad=bias_learns)
        with recorded_plans("cuda:90") as plans:
            triangle_attention(q, k, v, bias=bias).backward(grid)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        return plans[-1]

    @pytest.mark.parametrize(
        "fields", [{}, {"chunk_sequences": 1000}], ids=["as it comes", "more than there is room for"]
    )
    @pytest.mark.parametrize(("batch", "length"), [(1, 100), (1, 256), (16, 256), (1, 1000), (1, 1300)])
    def test_memory_does_not_grow_with_the_number_of_sequences(self, batch: int, length: int, fields: Any) -> None:
        with ts.ops.configured(**fields):
            plan = self.planned(length, batch=batch)
        launches = [launch for launch in plan.launches if launch.kernel.__name__ != "aligned_bias_kernel"]
        assert [launch.kernel.__name__ for launch in launches[:4]] == [
            "attention_delta_kernel", "attention_dkdv_kernel", "attention_dq_of_chunk_kernel",
            "attention_dbias_of_chunk_kernel",
        ]  # fmt: skip
        dscores, sums = (cast(Operand, launches[3].arguments[name]) for name in ("dscores_ptr", "sums_ptr"))
        assert dscores.shape[1:3] == (4, length)
        assert math.prod(dscores.shape) * dscores.element_bytes <= MOST_BYTES
        assert sums.shape[1] == batch * 4 * length**2
        assert sums.shape[0] == 1 or math.prod(sums.shape) * sums.element_bytes <= MOST_BYTES_OF_SUMS
        keys = [launch.grid[0] * cast(int, launch.arguments["BLOCK_KEYS"]) for launch in launches[1:-1:3]]
        assert sum(keys) >= batch * 4 * length**2

    @pytest.mark.parametrize(
        ("length", "dtype", "bias_learns"),
        [
            (256, torch.float32, True),
            (256, torch.bfloat16, False),
            (64, torch.bfloat16, True),
            (6000, torch.float16, True),
        ],
        ids=["single precision", "no gradient of the bias", "one block of keys", "too long"],
    )
    def test_are_not_made_where_they_gain_nothing(self, length: int, dtype: torch.dtype, bias_learns: bool) -> None:
        names = {launch.kernel.__name__ for launch in self.planned(length, dtype, bias_learns).launches}
        assert not any("chunk" in name for name in names)
        if length <= LONGEST:
            assert names == {"attention_short_backward_kernel", "sum_partials_kernel"}
        else:
            assert ("attention_dbias_kernel" in names) is bias_learns
