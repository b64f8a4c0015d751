"""The table of tuned configurations, its validation, and the search that fills it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tilesmith.ops import SPECS
from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.tuned_case import Tuned, tune_case
from tilesmith.spec import Case, Spec

DEVICE = torch.device("cuda", 0)
DEVICE_NAME = "NVIDIA H200 (pretended)"


@dataclass(frozen=True)
class BlockConfig(Config):
    BLOCK_SIZE: int = 64


DEFAULT = BlockConfig()
RESULTS = 60  # written by each of two processes: enough to collide


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Return the path of an empty table for a pretended device."""
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: DEVICE_NAME)
    monkeypatch.setattr(tuning, "_measured_here", {})
    tuning.forget_tables()
    yield tuning.table_path(DEVICE)
    tuning.forget_tables()


def keep(config: BlockConfig, kernels: str = "silu_forward", sizes: str = "1024 float32") -> bool:
    return tuning.keep(DEVICE, "configs", kernels, sizes, {"config": config.fields(), "ms": 0.5})


def stored(kernels: str = "silu_forward", sizes: str = "1024 float32") -> BlockConfig | None:
    return tuning.stored(DEVICE, kernels, sizes, DEFAULT)


class TestTable:
    def test_table_is_named_after_the_device(self, table: Path, tmp_path: Path) -> None:
        assert table == tmp_path / "tuned" / "nvidia-h200-pretended.json"

    def test_table_is_empty_at_first(self) -> None:
        assert stored() is None
        assert not tuning.prefers_torch(DEVICE, "silu", "1x1 float32", training=True)

    def test_stored_configuration_is_returned(self) -> None:
        assert keep(BlockConfig(num_warps=8, BLOCK_SIZE=256))
        assert stored() == BlockConfig(num_warps=8, BLOCK_SIZE=256)
        assert stored(sizes="2048 float32") is None
        assert stored(kernels="silu_backward") is None

    def test_entries_of_other_kernels_stay(self) -> None:
        keep(BlockConfig(BLOCK_SIZE=1), sizes="a")
        keep(BlockConfig(BLOCK_SIZE=2), sizes="b")
        keep(BlockConfig(BLOCK_SIZE=3), kernels="other", sizes="a")
        assert tuning.keep(DEVICE, "winners", "silu", "c", {"forward": "torch"})
        assert (stored(sizes="a"), stored(sizes="b")) == (BlockConfig(BLOCK_SIZE=1), BlockConfig(BLOCK_SIZE=2))
        assert stored(kernels="other", sizes="a") == BlockConfig(BLOCK_SIZE=3)
        assert tuning.prefers_torch(DEVICE, "silu", "c", training=False)

    def test_last_result_overwrites(self) -> None:
        keep(BlockConfig(BLOCK_SIZE=1))
        keep(BlockConfig(BLOCK_SIZE=2))
        assert stored() == BlockConfig(BLOCK_SIZE=2)

    def test_new_result_makes_later_calls_plan_again(self) -> None:
        before = dispatch.epoch()
        keep(DEFAULT)
        assert dispatch.epoch() != before

    def test_cpu_has_no_entries(self) -> None:
        keep(DEFAULT)
        assert tuning.stored(torch.device("cpu"), "silu_forward", "1024 float32", DEFAULT) is None

    def test_torch_wins_only_where_measured_faster(self) -> None:
        tuning.keep(DEVICE, "winners", "silu", "1x1 float32", {"forward": "torch", "training": "tilesmith"})
        assert not tuning.prefers_torch(DEVICE, "silu", "1x1 float32", training=True)
        tuning.keep(DEVICE, "winners", "silu", "1x1 float32", {"forward": "tilesmith", "training": "torch"})
        assert tuning.prefers_torch(DEVICE, "silu", "1x1 float32", training=True)
        assert not tuning.prefers_torch(torch.device("cpu"), "silu", "1x1 float32", training=True)
        assert not tuning.prefers_torch(DEVICE, "add", "1x1 float32", training=True)

    @pytest.mark.parametrize(
        ("sizes", "natively"),
        [
            ("16x16 64x16 float32 True", False),
            ("16x16 1024x16 float32 True", True),
            ("16x16 128x16 float32 True", False),
            ("16x32 512x16 float32 True", True),
            ("128x128 1024x16 float32 True", True),  # six doublings from the measured sizes, three for each matrix
            ("256x128 1024x16 float32 True", False),  # too far
            ("16x16 1024x16 float32 False", False),  # no such call was measured
            ("16x16 1024x16 float16 True", False),
            ("16x16 float32 True", False),
            ("16x16 0x16 float32 True", False),
        ],
    )
    def test_unmeasured_sizes_follow_the_nearest(self, sizes: str, natively: bool) -> None:
        tuning.keep(DEVICE, "winners", "silu", "16x16 64x16 float32 True", {"forward": "tilesmith"})
        tuning.keep(DEVICE, "winners", "silu", "16x16 1024x16 float32 True", {"forward": "torch"})
        assert tuning.prefers_torch(DEVICE, "silu", sizes, training=False) is natively
        assert not tuning.prefers_torch(DEVICE, "silu", sizes, training=True)

    @pytest.mark.parametrize("content", ["{not json", "", "\x00\xff", "[]", "3", '{"schema": 99, "configs": {}}'])
    def test_invalid_table_is_ignored_with_a_warning(self, table: Path, content: str) -> None:
        table.parent.mkdir()
        table.write_text(content)
        with pytest.warns(Warning, match="ignored"):
            assert stored() is None

    @pytest.mark.filterwarnings("ignore:.*ignored")
    @pytest.mark.parametrize("content", ["{not json", "[]", '{"schema": 99}', '{"schema": 2}'])
    def test_invalid_table_is_replaced_by_the_next_result(self, table: Path, content: str) -> None:
        table.parent.mkdir()
        table.write_text(content)
        assert keep(BlockConfig(BLOCK_SIZE=8))
        assert stored() == BlockConfig(BLOCK_SIZE=8)

    @pytest.mark.filterwarnings("ignore:.*ignored")
    @pytest.mark.parametrize(
        "damage",
        [
            {"schema": 2},
            {"schema": 2, "configs": [], "winners": []},
            {"schema": 2, "configs": {"silu_forward": []}, "winners": {"silu": 3}},
            {"schema": 2, "configs": {}, "winners": {"silu": {"1x1 float32": "torch"}}},
        ],
        ids=["no sections", "lists for sections", "lists in sections", "a word for winners"],
    )
    def test_damaged_sections_do_not_raise(self, table: Path, damage: Any) -> None:
        table.parent.mkdir()
        table.write_text(json.dumps(damage))
        assert stored() is None
        assert not tuning.prefers_torch(DEVICE, "silu", "1x1 float32", training=True)

    @pytest.mark.parametrize(
        "entry",
        [3, [], {}, {"config": 3}, {"config": {"NO_SUCH_FIELD": 3}}, {"config": {"BLOCK_SIZE": "wide"}}],
        ids=str,
    )
    def test_damaged_entry_is_ignored_with_a_warning(self, table: Path, entry: Any) -> None:
        table.parent.mkdir()
        table.write_text(json.dumps({"schema": 2, "configs": {"silu_forward": {"1024 float32": entry}}, "winners": {}}))
        with pytest.warns(Warning, match="silu_forward for 1024 float32 is damaged"):
            assert stored() is None

    def test_unwritable_table_warns(self, table: Path) -> None:
        table.parent.write_text("a file where the directory should be")
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            assert not keep(DEFAULT)

    @pytest.mark.usefixtures("forked")
    def test_concurrent_writers_keep_both_results(self, table: Path) -> None:
        program = f"""
import sys, torch
torch.cuda.get_device_name = lambda device: {DEVICE_NAME!r}
from tilesmith.ops.runtime import tuning
print("ready", flush=True)
sys.stdin.readline()
for number in range({RESULTS}):
    assert tuning.keep(torch.device("cuda", 0), "winners", sys.argv[1], str(number), "torch")
"""
        writers = [
            subprocess.Popen([sys.executable, "-c", program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for name in ("one", "other")
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"go\n")
            writer.stdin.close()
        assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
        winners = json.loads(table.read_text())["winners"]
        assert {name: len(results) for name, results in winners.items()} == {"one": RESULTS, "other": RESULTS}


class TestTrying:
    def test_configuration_on_trial_overrides_the_table(self) -> None:
        keep(BlockConfig(BLOCK_SIZE=1))
        with tuning.trying("silu_forward", "1024 float32", BlockConfig(BLOCK_SIZE=2)):
            assert stored() == BlockConfig(BLOCK_SIZE=2)
            assert stored(sizes="2048 float32") is None
        assert stored() == BlockConfig(BLOCK_SIZE=1)

    def test_trial_makes_calls_plan_again_before_and_after(self) -> None:
        epochs = [dispatch.epoch()]
        with tuning.trying("silu_forward", "1024 float32", DEFAULT):
            epochs.append(dispatch.epoch())
        epochs.append(dispatch.epoch())
        assert len(set(epochs)) == 3

    def test_trial_ends_when_its_block_raises(self) -> None:
        with pytest.raises(ZeroDivisionError), tuning.trying("silu_forward", "1024 float32", DEFAULT):
            raise ZeroDivisionError
        assert stored() is None


@pytest.mark.parametrize(
    ("shape", "dtype", "name"),
    [
        ((100, 512), torch.float32, "128x512 float32"),
        ((128, 257), torch.bfloat16, "128x512 bfloat16"),
        ((3, 5, 7), torch.float16, "16x8 float16"),
        ((9,), torch.float32, "1x16 float32"),
        ((), torch.float32, "1x1 float32"),
        ((0, 4), torch.float32, "1x4 float32"),
        ((4, 0), torch.float32, "1x1 float32"),
    ],
)
def test_bucket_has_rows_and_columns(shape: tuple[int, ...], dtype: torch.dtype, name: str) -> None:
    assert tuning.bucket_of([torch.empty(shape, dtype=dtype, device="meta")]) == name


def test_bucket_has_every_matrix_and_setting() -> None:
    x, weight, vector = torch.empty(100, 512), torch.empty(512, 300), torch.empty(300)
    assert tuning.bucket_of([x, weight, vector, None, 1e-6, 3, (1, 2), "relu"]) == (
        "128x512 512x512 float32 3 (1, 2) relu"
    )


class TestShippedTable:
    @pytest.fixture
    def shipped(self, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
        (tmp_path / "shipped").mkdir()
        path = tmp_path / "shipped" / table.name
        winners = {"silu": {"1x1 float32": {"training": "torch"}, "2x2 float32": {"training": "torch"}}}
        path.write_text(json.dumps({"schema": 2, "configs": {}, "winners": winners}))
        return path

    def test_shipped_table_decides_where_nothing_was_measured(self, shipped: Path) -> None:
        assert tuning.prefers_torch(DEVICE, "silu", "2x2 float32", training=True)
        tuning.keep(DEVICE, "winners", "silu", "1x1 float32", {"training": "tilesmith"})
        assert not tuning.prefers_torch(DEVICE, "silu", "1x1 float32", training=True)
        assert tuning.prefers_torch(DEVICE, "silu", "2x2 float32", training=True)

    def test_shipped_table_is_not_copied_into_the_local_one(self, shipped: Path, table: Path) -> None:
        tuning.keep(DEVICE, "winners", "silu", "1x1 float32", {"training": "tilesmith"})
        assert list(json.loads(table.read_text())["winners"]["silu"]) == ["1x1 float32"]

    @pytest.mark.parametrize("path", sorted(tuning.SHIPPED.glob("*.json")), ids=lambda path: str(path.stem))
    def test_shipped_tables_are_valid(self, path: Path) -> None:
        table = json.loads(path.read_text())
        assert tuning._is_table(table)
        assert {"device", "torch", "triton", "commit", "date"} <= table["source"].keys()


class TestSearch:
    @staticmethod
    def valley(block_size: int, warps: int) -> Callable[[BlockConfig], float]:
        """Return a time that is least at one configuration and grows with every doubling away from it."""
        return lambda config: (
            1.0 + abs(math.log2(config.BLOCK_SIZE / block_size)) + abs(math.log2(config.num_warps / warps))
        )

    @pytest.mark.parametrize(("block_size", "warps"), [(64, 4), (512, 4), (8, 1), (1024, 16)])
    def test_search_finds_the_fastest(self, block_size: int, warps: int) -> None:
        best, time = tuning.search(DEFAULT, self.valley(block_size, warps))
        assert (best.BLOCK_SIZE, best.num_warps) == (block_size, warps)
        assert time == 1.0

    def test_search_avoids_configurations_that_do_not_compile(self) -> None:
        valley = self.valley(512, 8)
        best, _ = tuning.search(
            DEFAULT, lambda config: math.inf if config.BLOCK_SIZE == 128 and config.num_warps == 4 else valley(config)
        )
        assert (best.BLOCK_SIZE, best.num_warps) == (512, 8)

    def test_search_leaves_a_start_that_does_not_compile(self) -> None:
        valley = self.valley(32, 4)
        best, time = tuning.search(DEFAULT, lambda config: math.inf if config == DEFAULT else valley(config))
        assert best.BLOCK_SIZE == 32
        assert math.isfinite(time)

    def test_search_stays_where_nothing_works(self) -> None:
        assert tuning.search(DEFAULT, lambda config: math.inf) == (DEFAULT, math.inf)

    def test_search_ignores_noise(self) -> None:
        best, _ = tuning.search(DEFAULT, lambda config: 1.0 if config == DEFAULT else 0.99)
        assert best == DEFAULT

    def test_search_measures_nothing_twice_and_stops_at_the_limit(self) -> None:
        measured: list[BlockConfig] = []

        def measure(config: BlockConfig) -> float:
            measured.append(config)
            return 1.0 / (1 + len(measured))

        tuning.search(DEFAULT, measure, most=12)
        assert len(measured) == len(set(measured)) == 12


def test_tuning_during_a_capture_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="not possible inside a CUDA-graph capture"):
        tuning.search(DEFAULT, lambda config: 1.0)
    with pytest.raises(RuntimeError, match="not possible inside a CUDA-graph capture"):
        keep(DEFAULT)


class TestTuneCase:
    """`tune_case` with a timer that knows which configuration and which mode is fast."""

    @pytest.fixture
    def timed(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        return []

    def tuned(self, timed: list[tuple[str, str]], torch_ms: float) -> Tuned:
        def timer(spec: Spec, case: Case, dtype: torch.dtype, mode: str) -> float:
            timed.append((dispatch.state().mode, mode))
            if dispatch.state().mode == "torch":
                return torch_ms
            plan = spec.op.forward.plan_for(spec.inputs(case, dtype, "meta")["x"])  # type: ignore[attr-defined]  # an Operator
            (choice,) = plan.choices
            config = tuning.stored(DEVICE, choice.kernels, choice.bucket, choice.config) or choice.config
            return 1.0 if config.num_warps == 2 else 2.0

        spec = SPECS["silu"]
        return tune_case(spec, spec.case("seed"), torch.bfloat16, timer)

    def test_stores_the_fastest_configuration(self, timed: list[tuple[str, str]], table: Path) -> None:
        tuned = self.tuned(timed, torch_ms=1.5)
        assert (tuned.before_ms, tuned.after_ms, tuned.torch_ms) == (2.0, 1.0, 1.5)
        (entry,) = json.loads(table.read_text())["configs"]["silu_forward"].values()
        assert entry["config"]["num_warps"] == 2

    @pytest.mark.parametrize(("torch_ms", "winner"), [(1.5, "tilesmith"), (0.5, "torch")])
    def test_stores_who_wins(
        self, timed: list[tuple[str, str]], table: Path, torch_ms: float, winner: str
    ) -> None:  # fmt: skip
        self.tuned(timed, torch_ms)
        stored = json.loads(table.read_text())
        (entry,) = stored["winners"]["silu"].values()
        assert entry == {"training": winner, "forward": winner, "backward": winner}
        assert stored["measured"]["silu"] == {
            "forward 1024x512:bfloat16": winner, "backward 1024x512:bfloat16'": winner,
        }  # fmt: skip
        assert tuning.measured(DEVICE, "silu", "1024x512:bfloat16", "forward") == winner

    def test_times_our_kernels_whatever_was_measured_before(self, timed: list[tuple[str, str]]) -> None:
        self.tuned(timed, torch_ms=1.5)
        assert {mode for mode, _ in timed} == {"triton", "torch"}
        assert {mode for _, mode in timed} == {"both", "fwd", "bwd"}
