"""Answers, from the trace of the kernel."""


def steps_of_both_passes(facts):
    loads = [one for one in facts.kernel.accesses if (one.kind, one.argument) == ("load", "x_ptr")]
    return sum(one.executions for one in loads) / facts.kernel.programs


def steps_of_a_pass(facts):
    return facts.access("load", "x_ptr").executions / facts.kernel.programs


def share_left(facts):
    return facts.argument("x_ptr").loads_per_element / 3


def share_saved(facts):
    return 1 - share_left(facts)
