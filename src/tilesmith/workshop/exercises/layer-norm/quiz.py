"""Answers, from what the kernel did."""


def loads_of_one_pass(facts):
    return facts.argument("x_ptr").loads_per_element


def loads_of_three_passes(facts):
    """Mean, variance and result each take what one pass takes."""
    return 3 * loads_of_one_pass(facts)


def bytes_of_x(facts):
    return facts.argument("x_ptr").loaded_bytes


def bytes_of_three_passes(facts):
    return 3 * bytes_of_x(facts)


def elements(facts):
    return facts.access("load", "x_ptr").shape[0]


def registers_for_the_row(facts):
    return elements(facts) / (32 * facts.target().num_warps)
