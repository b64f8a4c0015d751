"""Answers, from what the kernel did."""


def crossings_of_steps(facts):
    """Each step loads the matrix once, as the kernel does; three of the five store it."""
    return 5 * facts.argument("x_ptr").loads_per_element + 3 * facts.argument("out_ptr").stores_per_element


def traffic_of_steps_over_kernel(facts):
    own = facts.argument("x_ptr").loads_per_element + facts.argument("out_ptr").stores_per_element
    return crossings_of_steps(facts) / own


def lanes_off_for_a_hundred(facts):
    """The smallest block, doubled up from one lane, that holds the row."""
    lanes = 1
    while lanes < 100:
        lanes *= 2
    return lanes - 100


def lanes_off_in_the_measured_block(facts):
    return facts.access("load", "x_ptr").shape[0] - 100
