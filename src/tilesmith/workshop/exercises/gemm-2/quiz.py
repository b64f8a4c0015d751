"""Answers, from what the compiler made of the kernel."""

import math


def shared_bytes(facts):
    return facts.target().shared_bytes


def bytes_of_one_stage(facts):
    constants = facts.kernel.constants
    elements = (constants["TILE_ROWS"] + constants["TILE_COLUMNS"]) * constants["TILE_INNER"]
    return elements * facts.access("load", "a_ptr").element_bytes


def steps_ahead(facts):
    """The smallest number of steps whose multiplications take as long as a load."""
    steps = 0
    while steps * 300 < 800:
        steps += 1
    return steps


def steps_ahead_rounded_down(facts):
    return math.floor(800 / 300)
