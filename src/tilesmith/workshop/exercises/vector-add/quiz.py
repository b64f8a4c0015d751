"""Answers, from the trace of the kernel."""


def bytes_of_one_program(facts):
    return facts.kernel.bytes / facts.kernel.programs


def bytes_of_all_programs(facts):
    return facts.kernel.bytes


def bytes_loaded(facts):
    return sum(one.bytes for one in facts.kernel.accesses if one.kind == "load") / facts.kernel.programs


def elements_moved(facts):
    return bytes_of_one_program(facts) / 4


def additions_per_byte(facts):
    return facts.kernel.flops / facts.kernel.bytes


def additions_per_element_moved(facts):
    return 4 * additions_per_byte(facts)
