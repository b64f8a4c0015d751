"""Answers, by counting."""

from itertools import product


def tunings_by_exact_size(facts):
    return len({(rows, 64, 64) for rows in range(100, 164)})


def tunings_by_power_of_two(facts):
    return len({(rows - 1).bit_length() for rows in range(100, 164)})


def configurations(facts):
    return len(list(product(range(4), range(4), range(4), range(3), range(2))))


def configurations_added(facts):
    return 4 + 4 + 4 + 3 + 2
