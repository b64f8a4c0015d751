"""Answers, from what the program did to its banks."""

BANKS = 32


def turns_of_reading(facts):
    return facts.cuda.access("load", "shared").moved


def turns_without_padding(facts):
    """Every request goes through all words of one bank."""
    return BANKS * facts.cuda.access("load", "shared").requests


def turns_more(facts):
    return turns_without_padding(facts) - turns_of_reading(facts)
