"""Answers, from what the program did."""

THREADS = 64


def rounds(facts):
    """Threads that are left are halved until there is one."""
    left, number = THREADS, 0
    while left > 1:
        left, number = left // 2, number + 1
    return number


def additions(facts):
    return THREADS - 1


def blocks(facts):
    return facts.sizes["blocks"]


def elements(facts):
    return 64 + 200 + 1
