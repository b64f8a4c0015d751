"""triangle_attention: cuEquivariance's shapes, masks, lengths and return values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import published
import pytest
import torch
from torch import Tensor

import tilesmith as ts
import tilesmith.fold as cuequivariance_torch
from tilesmith.ops.runtime.kernels import recorded_plans

BATCH, ROWS, HEADS, LENGTH, HEAD = 2, 3, 2, 9, 8


@pytest.fixture(autouse=True, params=["torch", "interpret"])
def route(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use(request.param):
        yield


def leaves(keys: int = LENGTH, batch: int = BATCH, rows: int = ROWS) -> dict[str, Any]:
    return {
        "q": torch.randn(batch, rows, HEADS, LENGTH, HEAD), "k": torch.randn(batch, rows, HEADS, keys, HEAD),
        "v": torch.randn(batch, rows, HEADS, keys, HEAD), "bias": torch.randn(batch, 1, HEADS, LENGTH, keys),
    }  # fmt: skip


def padding(batch: int = BATCH, rows: int = ROWS, keys: int = LENGTH) -> Tensor:
    """A mask [B, N, 1, 1, K] with holes, with padding, and with a row without any key."""
    mask = torch.rand(batch, rows, 1, 1, keys) > 0.3
    mask[..., 0] = True
    mask[0, 0, ..., keys // 2 :] = False
    mask[0, 1] = False
    return mask


def assert_same(options: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> None:
    def ours(**given: Any) -> Tensor:
        return cuequivariance_torch.triangle_attention(**given, **options)  # type: ignore[return-value]  # one tensor

    def plain(**given: Any) -> Tensor:
        return published.triangle_attention(**given, **options)

    published.assert_as_published(ours, plain, tensors, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_output_and_gradients_as_published(dtype: torch.dtype) -> None:
    assert_same({"mask": padding(), "scale": 0.3}, leaves(), dtype)


@pytest.mark.parametrize("mask", [None, torch.tensor([1.0, 0.0, 2.0] * 3), torch.tensor([1, 0, 1] * 3)])
def test_masks_of_every_dtype_that_broadcast(mask: Tensor | None) -> None:
    assert_same({"mask": mask}, leaves())


def test_other_numbers_of_keys_than_of_queries() -> None:
    assert_same({"mask": padding(keys=5)}, leaves(keys=5))


@pytest.mark.parametrize("shape", [(1, 1, HEADS, LENGTH, LENGTH), (BATCH, 1, 1, 1, LENGTH), (BATCH, ROWS, HEADS, 1, 1)])
def test_bias_of_every_shape_that_broadcasts(shape: tuple[int, ...]) -> None:
    assert_same({}, {**leaves(), "bias": torch.randn(shape)})


def test_no_bias_adds_nothing() -> None:
    tensors, mask = leaves(), padding()
    nothing = {**tensors, "bias": torch.zeros(1)}
    made = cuequivariance_torch.triangle_attention(**{**tensors, "bias": None}, mask=mask)
    torch.testing.assert_close(made, published.triangle_attention(**nothing, mask=mask))


def test_bias_as_a_projection_leaves_it_in_memory() -> None:
    tensors = leaves()
    strided = torch.randn(BATCH, LENGTH, LENGTH, HEADS).permute(0, 3, 1, 2).unsqueeze(1)
    assert_same({"mask": padding()}, {**tensors, "bias": strided})


def test_four_dimensions_return_five() -> None:
    """As cuEquivariance does; OpenFold3 and Protenix remove the first one."""
    one = leaves(batch=1)
    mask = padding(batch=1)
    whole = cuequivariance_torch.triangle_attention(**one, mask=mask)
    first = {name: tensor[0] for name, tensor in one.items()}
    made = cuequivariance_torch.triangle_attention(**first, mask=mask[0])
    assert isinstance(made, Tensor)
    assert made.shape == (1, ROWS, HEADS, LENGTH, HEAD)
    torch.testing.assert_close(made, whole)


def test_arguments_by_position() -> None:
    tensors, mask = leaves(), padding()
    arguments: list[Any] = [*tensors.values(), mask, 0.5, False]
    by_position = cuequivariance_torch.triangle_attention(*arguments)
    torch.testing.assert_close(by_position, published.triangle_attention(**tensors, mask=mask, scale=0.5))


def test_auxiliary_results() -> None:
    tensors, mask = leaves(), padding()
    output, total, largest = cuequivariance_torch.triangle_attention(**tensors, mask=mask, return_aux=True)
    scores = tensors["q"] @ tensors["k"].mT * HEAD**-0.5 + tensors["bias"]
    scores = scores.masked_fill(~mask, -1e9)
    torch.testing.assert_close(output, published.triangle_attention(**tensors, mask=mask))
    torch.testing.assert_close(total, scores.logsumexp(-1))
    torch.testing.assert_close(largest, scores.amax(-1))
    assert total.dtype == largest.dtype == torch.float32


def test_lengths_in_place_of_a_mask() -> None:
    tensors = leaves()
    mask = torch.arange(LENGTH) < torch.tensor([[3, 0, 9], [1, 9, 4]])[:, :, None, None, None]
    lengths = cuequivariance_torch.mask_to_kv_lengths(mask)
    assert lengths.dtype == torch.int32
    assert lengths.shape == (BATCH, ROWS, 1, 1, 1)
    wanted = published.triangle_attention(**tensors, mask=mask)
    wanted[0, 1] = 0  # no key at all
    made = cuequivariance_torch.triangle_attention(**tensors, kv_lengths=lengths)
    torch.testing.assert_close(made, wanted)
    beyond = torch.full_like(lengths, LENGTH + 5)
    everything = cuequivariance_torch.triangle_attention(**tensors, kv_lengths=beyond)
    torch.testing.assert_close(everything, published.triangle_attention(**tensors))


def test_autocast_keeps_the_dtype_of_the_bias() -> None:
    tensors = leaves()
    bias = tensors["bias"].requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = cuequivariance_torch.triangle_attention(**tensors, mask=padding())
    assert isinstance(made, Tensor)
    assert made.dtype == torch.bfloat16
    made.float().sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    assert bias.grad is not None
    assert bias.grad.dtype == torch.float32


def test_runs_under_torch_compile() -> None:
    tensors, mask = leaves(), padding()
    compiled = torch.compile(cuequivariance_torch.triangle_attention, fullgraph=True, backend="aot_eager")
    eager = cuequivariance_torch.triangle_attention(**tensors, mask=mask)
    torch.testing.assert_close(compiled(**tensors, mask=mask), eager)


def test_no_rows_and_no_residues() -> None:
    empty = leaves(rows=0)
    made = cuequivariance_torch.triangle_attention(**empty)
    assert isinstance(made, Tensor)
    assert made.shape == (BATCH, 0, HEADS, LENGTH, HEAD)


def test_length_beyond_cuequivariance() -> None:
    """3,072 residues, planned on meta tensors for a GPU: one launch, and no score reaches memory."""
    n = 3072
    q = torch.empty(1, n, n, 4, 32, dtype=torch.bfloat16, device="meta").transpose(2, 3)
    bias = torch.empty(1, 1, 4, n, n, device="meta")
    with ts.use("triton"), recorded_plans("cuda:90") as plans:
        made = cuequivariance_torch.triangle_attention(q, q, q, bias)
    assert isinstance(made, Tensor)
    assert made.shape == q.shape
    assert [len(plan.launches) for plan in plans] == [1]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"kv_lengths": torch.ones(2, 3, 1, 1, 1, dtype=torch.int32), "mask": torch.ones(9)}, ValueError, "only one"),
        ({"kv_lengths": torch.ones(2, 3, dtype=torch.int32)}, ValueError, "kv_lengths is torch.int32 of shape"),
        ({"mask": torch.ones(2, 3, 2, 1, 9)}, ValueError, r"mask has shape \(2, 3, 2, 1, 9\), but must broadcast to"),
        ({"mask": torch.ones(3, 9, 9)}, ValueError, r"mask has shape \(3, 9, 9\), but must broadcast to"),
        ({"bias": torch.ones(2, 1, 3, 9, 9)}, ValueError, r"bias has shape \(2, 1, 3, 9, 9\), but must broadcast to"),
        ({"bias": 1.0}, TypeError, "bias is a float, but must be a tensor"),
        ({"q": torch.ones(1, 2, 3, 2, 9, 8)}, ValueError, "q has shape"),
        ({"scale": 0.0}, ValueError, "scale is 0.0, but must be positive"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cuequivariance_torch.triangle_attention(**{**leaves(), **change})


@pytest.mark.parametrize("keys", [LENGTH, LENGTH - 2])
def test_empty_batch_has_empty_gradients(keys: int) -> None:
    given = {name: one.requires_grad_() for name, one in leaves(keys, batch=0).items()}
    output: Any = cuequivariance_torch.triangle_attention(**given)
    gradients = torch.autograd.grad(output.sum(), list(given.values()))
    assert [one.shape for one in gradients] == [one.shape for one in given.values()]


def test_mask_with_holes_has_no_lengths() -> None:
    with pytest.raises(ValueError, match="true element after a false one"):
        cuequivariance_torch.mask_to_kv_lengths(torch.tensor([True, False, True])[None, None, None])


def test_wrong_argument_is_refused_after_a_right_call_of_the_same_shapes() -> None:
    function: Any = cuequivariance_torch.triangle_attention
    q, bias = torch.randn(1, 3, 2, 4, 8), torch.randn(1, 1, 2, 4, 4)
    for _ in range(2):
        function(q, q, q, bias, scale=0.5)
    with pytest.raises(TypeError, match=r"triangle_attention: q has dtype"):
        function(q.long(), q, q, bias, scale=0.5)
    with pytest.raises(TypeError, match=r"triangle_attention: scale is a str"):
        function(q, q, q, bias, scale="0.5")
    with pytest.raises(TypeError, match=r"triangle_attention: .*'scales'"):
        function(q, q, q, bias, scales=0.5)
