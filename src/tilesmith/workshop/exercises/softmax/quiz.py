"""Answers, from the trace of the kernel."""


def crossings_of_steps(facts):
    """Each of the five steps loads the matrix once, like the kernel; three of them store it."""
    return 5 * facts.argument("x_ptr").loads_per_element + 3 * facts.argument("out_ptr").stores_per_element


def traffic_of_steps_over_kernel(facts):
    own = facts.argument("x_ptr").loads_per_element + facts.argument("out_ptr").stores_per_element
    return crossings_of_steps(facts) / own


def lanes_off(facts):
    load = facts.on("large-values").access("load", "x_ptr")
    return load.shape[0] * load.masked_fraction


def lanes_off_in_the_measured_block(facts):
    """The number with the block of the longer row."""
    return facts.access("load", "x_ptr").shape[0] - facts.on("large-values").sizes["columns"]
