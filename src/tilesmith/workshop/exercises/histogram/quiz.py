"""Answers, from the trace of the kernel."""


def atomics_of_the_starter(facts):
    return facts.argument("values_ptr").shape[0]


def one_per_bin(facts):
    return facts.argument("counts_ptr").shape[0]


def atomics_of_the_solution(facts):
    return round(facts.argument("counts_ptr").stores_per_element * one_per_bin(facts))
