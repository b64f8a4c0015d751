"""Answers, from the counts of the program."""

CHUNKS_OF_ALL_CASES = 4 + 3 + 1
CHUNKS_OF_THE_FIRST = 4


def copies_only(facts):
    return facts.sizes["async_copies"] * CHUNKS_OF_THE_FIRST / CHUNKS_OF_ALL_CASES


def operations(facts):
    return copies_only(facts) + CHUNKS_OF_THE_FIRST


def one_after_another(facts):
    return operations(facts)


def overlapped(facts):
    """The steps of one chunk, and one more for each further chunk."""
    return operations(facts) / CHUNKS_OF_THE_FIRST + CHUNKS_OF_THE_FIRST - 1
