"""Answers, from what the program did."""

ROWS = (50, 7, 1)


def copies(facts):
    return facts.sizes["copies"]


def copies_by_element(facts):
    """In place of one copy for each column, one for each of its elements."""
    return copies(facts) - len(ROWS) + sum(ROWS)


def matrix_over_column(facts):
    return 50 * 40 / rows_of_matrix(facts)


def rows_of_matrix(facts):
    return ROWS[0]
