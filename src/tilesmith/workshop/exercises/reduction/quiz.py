"""Answers, from the trace of the kernel."""


def partial_sums(facts):
    return facts.kernel.programs


def elements_of_a_block(facts):
    return facts.access("load", "x_ptr").shape[0]


def rounds(facts):
    left, count = elements_of_a_block(facts), 0
    while left > 1:
        left, count = left // 2, count + 1
    return count


def one_after_another(facts):
    return elements_of_a_block(facts) - 1
