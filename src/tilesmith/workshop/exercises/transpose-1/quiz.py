"""Answers, from what the kernel did."""


def sectors_of_store(facts):
    return facts.access("store", "out_ptr").sectors_per_request


def sectors_of_load(facts):
    return facts.access("load", "x_ptr").sectors_per_request


def sector_bytes(facts):
    """What is wanted, over the share of the sectors that is wanted."""
    return sum(one.bytes / one.efficiency for one in facts.kernel.accesses)


def wanted_bytes(facts):
    return facts.kernel.bytes
