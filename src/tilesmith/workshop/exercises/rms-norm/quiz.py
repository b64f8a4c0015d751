"""Answers, from the trace of the kernel."""


def bytes_without_weight(facts):
    return facts.argument("x_ptr").loaded_bytes + facts.argument("out_ptr").stored_bytes


def bytes_read(facts):
    return facts.argument("x_ptr").loaded_bytes


def crossings_of_separate_steps(facts):
    """Three steps read and write the matrix like the kernel, and one step only reads it."""
    return 3 * crossings_of_the_kernel(facts) + facts.argument("x_ptr").loads_per_element


def crossings_of_the_kernel(facts):
    return facts.argument("x_ptr").loads_per_element + facts.argument("out_ptr").stores_per_element


def loads_of_weight(facts):
    return facts.argument("weight_ptr").loads_per_element


def once(facts):
    return 1
