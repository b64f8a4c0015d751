"""Answers, by counting the bytes and the calls."""

from itertools import product


def rate(facts):
    return 2 * rate_of_reads(facts)


def rate_of_reads(facts):
    return 4096 * 1024 * 4 / 0.01e-3 / 1e9


def calls(facts):
    return len(list(product(range(12), range(3))))


def values_only(facts):
    return len(range(12))
