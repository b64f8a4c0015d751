"""Answers, by counting."""

THREADS, EACH, ELEMENTS, TERMS = 64, 4, 1_000_000, 5


def blocks_of_a_million(facts):
    return -(-ELEMENTS // (THREADS * EACH))


def blocks_rounded_down(facts):
    return ELEMENTS // (THREADS * EACH)


def operations(facts):
    return sum(2 for _ in range(TERMS))


def operations_with_powers(facts):
    return sum(power + 1 for power in range(TERMS))
