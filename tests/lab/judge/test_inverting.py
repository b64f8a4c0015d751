"""Conditions of a candidate's Python that its arguments do not decide are found and inverted."""

from __future__ import annotations

import ast
import struct
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tilesmith.lab.judge.candidate import Candidate
from tilesmith.lab.judge.recording import forcing
from tilesmith.lab.judge.sizing.planting import bit_patterns_of

FILE = """
import torch

FAST = torch.version.hip is None
count = 0

@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    if tl.program_id(0) == 0:
        tl.store(x_ptr, 0)

def helper(flag):
    return torch.is_autocast_enabled()

def softmax(x, dim=-1):
    global count
    count += 1
    rows = x.shape[0]
    device = x.device
    if rows > 4 or x.dtype == torch.float16:
        return None
    if count > 5000 or device.index == 1:
        return 1
    return 2 if helper(x) and not FAST else 3
"""


def found_in(text: str) -> set[str]:
    return {ast.unparse(one) for one in forcing.expressions("candidate.py", ast.parse(text)).values()}


def test_expressions_of_sizes_and_dtypes_are_left_alone() -> None:
    found = found_in(FILE)
    assert {"torch.version.hip is None", "torch.is_autocast_enabled()", "count > 5000", "device.index == 1"} <= found
    assert "FAST" in found
    assert not {"rows > 4", "x.dtype == torch.float16", "tl.program_id(0) == 0", "helper(x)"} & found


@pytest.mark.parametrize(("turned", "wanted"), [("", 3), ("candidate.py:0", 1), ("candidate.py:1", 3)])
def test_one_expression_is_turned_over_at_a_time(tmp_path: Path, turned: str, wanted: int) -> None:
    text = """
    def softmax(x):
        if len([]) > 0:
            return 1
        return 3 if type(x) is int else 4 + bool(print())
    """
    (tmp_path / "candidate.py").write_text(textwrap.dedent(text))
    truths = forcing.Truths()
    loader = forcing.Loader("candidate", str(tmp_path / "candidate.py"), tmp_path)
    space: dict[str, Any] = {forcing.MARK: truths}
    exec(loader.source_to_code((tmp_path / "candidate.py").read_bytes(), "candidate.py"), space)
    truths.turned = turned
    assert space["softmax"](5) == wanted


def test_random_condition_is_turned_from_what_it_was_before() -> None:
    truths = forcing.Truths()
    assert truths("rare", True, False) is False
    assert truths.taken() == ["rare"]
    truths.turned = "rare"
    assert truths("rare", True, False) is True
    assert truths("rare", True, True) is True  # true by chance in this call
    assert truths.taken() == ["rare"]
    truths.turned = ""
    assert truths("both", True, False) is not truths("both", True, True)
    assert truths("object", True, [1]) == [1]
    truths.taken()
    truths.turned = "both"
    assert truths("both", True, True) is False
    truths.turned = "object"
    assert truths("object", True, [1]) is False


def test_bit_patterns_have_the_bits_that_a_kernel_asks_for() -> None:
    text = """
    @triton.jit
    def kernel(x):
        bits = x.to(tl.int32, bitcast=True)
        return ((bits >> 3) & 0xFFFF) == 0xBEEF
    """
    found = bit_patterns_of(Candidate.of_text(textwrap.dedent(text)))
    assert found
    bits = [struct.unpack("I", struct.pack("f", one))[0] for one in found]
    assert any((one >> 3) & 0xFFFF == 0xBEEF for one in bits)
    assert bit_patterns_of(Candidate.of_text("def f(x):\n    return x\n")) == []
