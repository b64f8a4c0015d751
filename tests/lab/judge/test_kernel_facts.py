"""Facts about the kernels of a tape, as the verdict shows them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tilesmith.lab.judge.replaying.kernel_facts import facts_of
from tilesmith.toolchain.interpreter import Launched

ZOO = Path(__file__).parents[2] / "judge" / "zoo"


def honest(path: str) -> Any:
    """Return the module of an honest candidate."""
    found: Any = importlib.util.spec_from_file_location(Path(path).stem, ZOO / "honest" / path)
    module: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_kernel_whose_programs_wait_for_earlier_ones_has_facts() -> None:
    module = honest("row_sum/chain_of_programs.py")
    arguments = {"x_ptr": torch.ones(40, 8), "y_ptr": torch.empty(40), "turn_ptr": torch.zeros(1, dtype=torch.int32)}
    launched = Launched(module.sum_kernel, (40, 1, 1), {**arguments, "n_cols": 8, "BLOCK": 8}, {})
    replay: Any = SimpleNamespace(launched=lambda step: launched)
    (kernel,) = facts_of(replay, [{"kernel": 0}], ["cuda:90"])
    assert kernel["bytes"] > 40 * 8 * 4
    assert kernel["targets"]["cuda:90"]["registers"] > 0
    assert arguments["y_ptr"].tolist() == [8.0] * 40


def test_facts_do_not_ask_for_an_allocator_that_the_judge_sets() -> None:
    found: Any = importlib.util.spec_from_file_location(
        "described", ZOO / "honest" / "softmax" / "device_descriptor.py"
    )
    module: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    arguments = {"x_ptr": torch.ones(4, 16), "y_ptr": torch.empty(4, 16), "n_rows": 4, "n_cols": 16, "row_stride": 16}
    launched = Launched(module.softmax_kernel, (4, 1, 1), {**arguments, "BLOCK": 16}, {})
    replay: Any = SimpleNamespace(launched=lambda step: launched)
    (kernel,) = facts_of(replay, [{"kernel": 0}], ["cuda:90"])
    assert [one["message"] for one in kernel["findings"] if one["kind"] == "compile-error"] == []
