"""Answers, from what the program did."""

MATRICES = ((50, 40), (7, 3), (1, 1))
FLOAT_BYTES = 4


def copies(facts):
    return facts.sizes["copies"]


def copies_by_element(facts):
    """One for each of the elements that the program copied."""
    return facts.sizes["copied_bytes"] / FLOAT_BYTES


def bytes_of_matrices(facts):
    return sum(rows * columns * FLOAT_BYTES for rows, columns in MATRICES)


def bytes_more(facts):
    return bytes_of_matrices(facts) - facts.sizes["copied_bytes"]
