"""Teams of programs: how many may share a row, and how they read what the others left."""

from __future__ import annotations

import pytest
import torch
from specialisation import planned_launches

from tilesmith.ops import SPECS
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.toolchain.compiler import Target, compile_kernel

OPERATORS = ["softmax", "rms_norm", "layer_norm"]


def shared_rows(operator: str, columns: int, target: str = "cuda:90") -> list[PlannedLaunch]:
    """Return the launches in which several programs share a row."""
    spec = SPECS[operator]
    case = spec.cases[-1].with_sizes(rows=512, cols=columns)
    launches = planned_launches(spec, case, torch.bfloat16, target=target)
    return [one for one in launches if one.arguments.get("words_ptr") is not None and "n_parts" in one.arguments]


@pytest.mark.parametrize("operator", OPERATORS)
def test_team_is_no_larger_than_the_gpu(operator: str) -> None:
    """Programs of a larger team would wait forever for those that cannot start."""
    assert shared_rows(operator, 200_001)
    assert not shared_rows(operator, 20_000_001)


@pytest.mark.parametrize(("target", "lanes"), [("cuda:90", 32), ("hip:gfx942", 64)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers_of_a_team_fill_a_warp(operator: str, target: str, lanes: int) -> None:
    """Else two threads of a warp hold one number, and may see it come at different times."""
    assert all(int(str(one.arguments["PARTS"])) >= lanes for one in shared_rows(operator, 60_001, target))


def test_team_reads_memory_and_not_a_cache() -> None:
    launch = shared_rows("softmax", 200_001)[0]
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert "ld.volatile.global" in binary.assembly["ptx"]
