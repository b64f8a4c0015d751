"""Answers, from what the kernel did."""

BANKS, LANES = 32, 32


def load_requests(facts):
    return facts.access("load", "x_ptr").requests


def requests_of_single_elements(facts):
    load = facts.access("load", "x_ptr")
    return load.requests * load.vector_bytes / load.element_bytes


def turns_down_a_column(facts):
    return _turns(row_length=32)


def turns_with_padding(facts):
    return _turns(row_length=33)


def _turns(row_length):
    """The most lanes that meet in one bank, when lane n reads the first element of row n."""
    banks = [lane * row_length % BANKS for lane in range(LANES)]
    return max(map(banks.count, banks))
