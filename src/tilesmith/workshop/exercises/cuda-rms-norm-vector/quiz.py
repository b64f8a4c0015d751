"""Answers, from the counts of the program."""


def barriers(facts):
    return facts.sizes["barriers"]


def barriers_of_a_block(facts):
    return facts.sizes["barriers"] / facts.sizes["blocks"]


def elements_of_a_thread(facts):
    """The length of the vector, divided by the threads of its block."""
    return elements_of_all(facts) / (facts.sizes["threads"] / facts.sizes["blocks"])


def elements_of_all(facts):
    return 128
