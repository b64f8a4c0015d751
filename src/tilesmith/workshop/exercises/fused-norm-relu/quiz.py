"""Answers, from the trace of the kernel."""


def half_of_it(facts):
    return facts.argument("out_ptr").stored_bytes


def bytes_saved(facts):
    """The intermediate result: stored like the last result, and loaded like x."""
    return facts.argument("out_ptr").stored_bytes + facts.argument("x_ptr").loaded_bytes


def crossings(facts):
    return facts.argument("x_ptr").loads_per_element + facts.argument("out_ptr").stores_per_element


def number_of_crossings(facts):
    return 2 * crossings(facts)


def speed_up_at_best(facts):
    return number_of_crossings(facts) / crossings(facts)
