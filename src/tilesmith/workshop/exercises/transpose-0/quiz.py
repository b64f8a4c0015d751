"""Answers, from the trace of the kernel."""


def sectors_of_store(facts):
    return facts.access("store", "out_ptr").sectors_per_request


def sectors_of_load(facts):
    return facts.access("load", "x_ptr").sectors_per_request


def share_stored(facts):
    return facts.access("store", "out_ptr").efficiency


def share_wasted(facts):
    return 1 - share_stored(facts)
