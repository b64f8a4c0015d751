"""Few queries and many keys: how the keys are split, and on a GPU that every edge is as exact as the plain form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.attention import forms
from tilesmith.ops.attention.kernels import decode, decode_one_row
from tilesmith.ops.attention.kernels.decode import FEWEST_KEYS, Decode, DecodeConfig, splits_of
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.toolchain.compiler import Target, compile_kernel

spec = SPECS["attention"]
attention = spec.op
CONFIG = DecodeConfig(BLOCK_KEYS=128)


@pytest.mark.parametrize(
    ("keys", "tiles", "splits"),
    [
        (FEWEST_KEYS, 1, 1),  # the second kernel would cost more
        (8192, 132, 1),  # the tiles fill the GPU
        (8192, 8, 33),
        (8192, 1, 64),  # no split without a block of keys
        (1 << 20, 1, 128),
    ],
)
def test_keys_are_split_until_the_programs_fill_the_gpu(keys: int, tiles: int, splits: int) -> None:
    assert splits_of(keys, tiles, 132, CONFIG) == splits


def launch(
    queries: int, group: int, head: int, target: str = "cuda:90", batch: int = 1, masked: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> PlannedLaunch:  # fmt: skip
    q = torch.empty(batch, 2 * group, queries, head, dtype=dtype, device="meta")
    k = torch.empty(batch, 2, 4096, head, dtype=dtype, device="meta")
    mask = torch.empty(batch, 4096, dtype=torch.bool, device="meta") if masked else None
    with ts.use("triton"), recorded_plans(target) as plans:
        attention(q, k, k, mask=mask)
    return plans[0].launches[0]


@pytest.mark.parametrize(("group", "head"), [(1, 64), (8, 128), (71, 80), (16, 256)])
def test_tiles_of_keys_fit_without_spilling(group: int, head: int) -> None:
    planned = launch(1, group, head)
    assert planned.kernel.__name__ == "attention_decode_kernel"
    binary = compile_kernel(planned.kernel, Target.parse("cuda:90"), planned.arguments, **planned.options())
    assert binary.spill_bytes == 0
    assert binary.shared_bytes <= 227 * 1024


def test_many_rows_are_split_only_where_few_tiles_fill_the_gpu() -> None:
    assert launch(1, 100, 64).kernel.__name__ == "attention_decode_kernel"
    assert launch(1, 100, 64, batch=64).kernel.__name__ != "attention_decode_kernel"


def test_gpus_without_tma_read_keys_by_pointers() -> None:
    assert launch(1, 8, 128).arguments["WALK"] == "described"
    assert launch(1, 8, 128, "cuda:80").arguments["WALK"] == "near"


@pytest.mark.parametrize(("head", "by_tma"), [(24, False), (40, False), (48, True), (56, True), (64, True), (72, True)])
@pytest.mark.parametrize("masked", [False, True])
def test_narrow_rows_of_no_multiple_of_32_bytes_are_read_by_pointers(head: int, by_tma: bool, masked: bool) -> None:
    planned = launch(1, 2, head, masked=masked)
    assert (planned.arguments["WALK"] == "described") is by_tma
    if not by_tma:
        assert planned.arguments["WALK"] == "aligned"  # in 16-byte vectors
        assert (planned.arguments["BLOCK_KEYS"], planned.config.num_stages) == (64, 3)


MASKS = {  # which of 300 keys, in blocks of 32 or 64, are attended to
    "no mask": None,
    "a hole": lambda keys: keys % 7 != 3,
    "padding before": lambda keys: keys >= 101,
    "padding after": lambda keys: keys < 130,
    "padding around": lambda keys: (keys >= 70) & (keys < 140),
    "one key": lambda keys: keys == 299,
    "no key": lambda keys: keys < 0,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("group", [1, 2])
def test_every_mask_matches_the_reference(group: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split and not, where masked values are NaN, and windowed. A group of one head is one row."""
    torch.manual_seed(0)
    monkeypatch.setattr(decode_one_row, "FILLED", 0)
    keys, head, of_key = 300, 24, MASKS[name]
    q = torch.randn(2, 3 * group, 1, head).half()
    k, v = (torch.randn(2, 3, keys, head).half() for _ in range(2))
    options: dict[str, object] = {}
    if of_key is not None:
        attended = of_key(torch.arange(keys)).expand(2, keys).clone()
        attended[1] = attended[1].roll(1)
        options["mask"] = attended
        v = v.masked_fill(~attended[:, None, :, None], float("nan"))
    for splits, window in ((1, None), (4, None), (3, (150, 0))):
        monkeypatch.setattr(decode, "splits_of", lambda *_, splits=splits: splits)
        dispatch.forget()
        expected = spec.reference(q.double(), k.double(), v.nan_to_num().double(), window=window, **options)
        with ts.use("interpret"):
            made = attention(q, k, v, window=window, **options)
        torch.testing.assert_close(made.double(), expected, atol=2e-3, rtol=2e-3)
    dispatch.forget()


def test_one_query_to_each_head_of_keys_takes_no_tensor_cores_where_those_are_slow() -> None:
    launched: Any = launch

    def kernel(*arguments: int, **options: Any) -> str:
        return str(launched(*arguments, **options).kernel.__name__).removeprefix("attention_decode_")

    assert kernel(1, 1, 64, masked=True) == kernel(1, 1, 72, batch=60) == "row_kernel"
    assert kernel(1, 1, 64, batch=60) == "kernel"  # rows of a multiple of 32 bytes
    assert kernel(1, 1, 72) == "kernel"  # few tiles
    assert kernel(1, 2, 64, masked=True) == kernel(2, 1, 64, masked=True) == "kernel"
    assert kernel(1, 1, 64, masked=True, dtype=torch.float32) == "kernel"


def test_one_row_has_four_programs_for_each_multiprocessor() -> None:
    assert launch(1, 1, 64, masked=True, batch=64).grid == (512, 1, 1)
    assert launch(1, 1, 64, masked=True, batch=250).grid == (500, 1, 1)


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize(("queries", "group", "head"), [(1, 1, 40), (1, 1, 128), (1, 4, 40), (1, 4, 128), (8, 8, 256)])
def test_masked_tiles_do_not_spill(queries: int, group: int, head: int, target: str) -> None:
    planned = launch(queries, group, head, target, masked=True)
    binary = compile_kernel(planned.kernel, Target.parse(target), planned.arguments, **planned.options())
    assert binary.spill_bytes == 0


SIZES = {  # batch, heads, key heads, queries, keys, head size
    "one-block": (3, 8, 2, 1, 100, 64),
    "few-keys": (2, 28, 4, 1, 20, 112),
    "unsplit": (40, 8, 8, 1, 1000, 64),
    "split": (2, 32, 8, 1, 5000, 128),
    "several-queries": (2, 16, 4, 5, 3001, 96),
    "padded-head": (5, 12, 6, 1, 4095, 72),
    "narrow": (2, 4, 4, 2, 999, 32),
    "wide": (2, 16, 2, 1, 752, 160),
    "widest": (1, 16, 1, 2, 2000, 256),
    "more-rows": (1, 24, 3, 8, 1111, 128),
    "most-rows": (1, 71, 1, 1, 5327, 80),
    "a-block-of-queries": (2, 8, 8, 64, 2048, 128),
}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "masked"),
    [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)],
    ids=["bf16", "bf16-masked", "fp32"],
)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_is_as_exact_as_the_plain_form(
    sizes: tuple[int, ...], dtype: torch.dtype, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, heads, key_heads, queries, keys, head = sizes
    torch.manual_seed(0)
    q = torch.randn(batch, queries, heads, head, device="cuda", dtype=dtype).transpose(1, 2)
    k, v = (torch.randn(batch, key_heads, keys, head, device="cuda", dtype=dtype) for _ in range(2))
    options = {"mask": torch.arange(keys, device="cuda").expand(batch, keys) % 7 != 3} if masked else {}
    right = spec.reference(q.double(), k.double(), v.double(), causal=True, **options)

    def error() -> float:
        dispatch.forget()
        with ts.use("triton"):
            made = attention(q, k, v, causal=True, **options)
        assert made.isfinite().all()
        return float((made.double() - right).norm() / right.norm())

    ours = error()
    monkeypatch.setattr(forms, "FORWARD", [form for form in forms.FORWARD if not isinstance(form, Decode)])
    plain = error()
    dispatch.forget()
    assert ours <= (1.2 if dtype.itemsize == 2 else 3) * plain + 1e-6
