"""Answers, from the trace of the kernel."""


def tiles_of_a_program(facts):
    return all_tiles(facts) / facts.kernel.programs


def all_tiles(facts):
    """Every tile is stored once."""
    return facts.access("store", "out_ptr").executions


def share_of_time_used(facts):
    tiles, programs = all_tiles(facts) + 1, facts.kernel.programs
    rounds = len(range(0, tiles, programs))
    return tiles / (rounds * programs)


def share_of_time_wasted(facts):
    return 1 - share_of_time_used(facts)
