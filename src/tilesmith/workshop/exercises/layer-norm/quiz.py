"""Answers, from the traces of the kernel and of the starter."""


def loads_of_one_pass(facts):
    return facts.argument("x_ptr").loads_per_element


def loads_of_three_passes(facts):
    return loads_of_one_pass(facts.starter)


def bytes_of_x(facts):
    return facts.argument("x_ptr").loaded_bytes


def bytes_of_three_passes(facts):
    return bytes_of_x(facts.starter)


def elements(facts):
    return facts.access("load", "x_ptr").shape[0]


def registers_for_the_row(facts):
    return elements(facts) / (32 * facts.target().num_warps)
