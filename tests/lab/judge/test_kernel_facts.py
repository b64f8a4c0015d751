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


def test_kernel_whose_programs_wait_for_earlier_ones_has_facts() -> None:
    found: Any = importlib.util.spec_from_file_location("chain", ZOO / "honest" / "row_sum" / "chain_of_programs.py")
    module: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    arguments = {"x_ptr": torch.ones(40, 8), "y_ptr": torch.empty(40), "turn_ptr": torch.zeros(1, dtype=torch.int32)}
    launched = Launched(module.sum_kernel, (40, 1, 1), {**arguments, "n_cols": 8, "BLOCK": 8}, {})
    replay: Any = SimpleNamespace(launched=lambda step: launched)
    (kernel,) = facts_of(replay, [{"kernel": 0}], ["cuda:90"])
    assert kernel["bytes"] > 40 * 8 * 4
    assert kernel["targets"]["cuda:90"]["registers"] > 0
    assert arguments["y_ptr"].tolist() == [8.0] * 40
