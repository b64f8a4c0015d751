"""The contexts of a check restore what they change, also where blocks of two threads overlap."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch

from tilesmith.lab.check.context import exact_products, uncompiled


@pytest.fixture(autouse=True)
def tf32_allowed() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def tf32_of_products_and_convolutions() -> tuple[bool, bool]:
    return torch.get_float32_matmul_precision() != "highest", torch.backends.cudnn.allow_tf32


def test_tf32_stays_disabled_until_the_last_of_overlapping_blocks_ends() -> None:
    """As in two threads: the block that begins first also ends first."""
    first, second = ExitStack(), ExitStack()
    first.enter_context(exact_products())
    second.enter_context(exact_products())
    assert tf32_of_products_and_convolutions() == (False, False)
    first.close()
    assert tf32_of_products_and_convolutions() == (False, False)
    second.close()
    assert tf32_of_products_and_convolutions() == (True, True)


def test_tf32_is_restored_when_its_block_raises() -> None:
    with pytest.raises(ZeroDivisionError), exact_products():
        raise ZeroDivisionError
    assert tf32_of_products_and_convolutions() == (True, True)


def test_compiled_functions_run_as_written_on_a_cpu_and_are_compiled_again_later() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled_before = torch.compile(lambda x: x + 1, backend=backend)
    with uncompiled("cpu"):
        compiled_inside = torch.compile(lambda x: x + 2, backend=backend)
        assert float(compiled_before(torch.zeros(()))) == 1
        assert float(compiled_inside(torch.zeros(()))) == 2
    assert graphs == []
    assert float(compiled_before(torch.zeros(()))) == 1
    assert len(graphs) == 1
