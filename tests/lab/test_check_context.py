"""The contexts of a check restore what they change, also where blocks of two threads overlap."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from tilesmith.lab.check_context import exact_products


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
