"""Answers, from what the kernel did, or by counting rounds."""


def tiles_of_a_program(facts):
    return all_tiles(facts) / facts.kernel.programs


def all_tiles(facts):
    """Every tile is stored once."""
    return facts.access("store", "out_ptr").executions


def share_of_time_used(facts):
    rounds, left = 0, 140
    while left > 0:
        rounds, left = rounds + 1, left - 132
    return 140 / (rounds * 132)


def share_of_time_wasted(facts):
    return 1 - share_of_time_used(facts)
