"""Answers, from the shared-memory accesses of the program."""

BANKS = 32


def turns_of_reading(facts):
    return facts.cuda.access("load", "shared").moved


def turns_without_padding(facts):
    """Every request accesses all its words in one bank."""
    return BANKS * facts.cuda.access("load", "shared").requests


def turns_more(facts):
    return turns_without_padding(facts) - turns_of_reading(facts)
