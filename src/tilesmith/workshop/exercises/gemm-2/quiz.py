"""Answers, from the trace and the binary of the kernel."""


def shared_bytes(facts):
    return facts.target().shared_bytes


def bytes_of_one_stage(facts):
    constants = facts.kernel.constants
    elements = (constants["TILE_ROWS"] + constants["TILE_COLUMNS"]) * constants["TILE_INNER"]
    return elements * facts.access("load", "a_ptr").element_bytes


def steps(facts):
    """Each step of a program loads a tile of a once."""
    return steps_of_all_programs(facts) / facts.kernel.programs


def steps_of_all_programs(facts):
    return facts.access("load", "a_ptr").executions
