"""Answers, from the trace of the kernel."""


def sectors_of_store(facts):
    return facts.access("store", "out_ptr").sectors_per_request


def sectors_of_load(facts):
    return facts.access("load", "x_ptr").sectors_per_request


def sector_bytes(facts):
    """The useful bytes, divided by the share of the moved bytes that is useful."""
    return sum(one.bytes / one.efficiency for one in facts.kernel.accesses)


def wanted_bytes(facts):
    return facts.kernel.bytes
