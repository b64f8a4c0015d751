"""Answers, from what the program did."""


def barriers(facts):
    return facts.sizes["barriers"]


def barriers_of_a_block(facts):
    return facts.sizes["barriers"] / facts.sizes["blocks"]


def elements_of_a_thread(facts):
    """The vector over the threads of the block that takes it."""
    return elements_of_all(facts) / (facts.sizes["threads"] / facts.sizes["blocks"])


def elements_of_all(facts):
    return 128
