"""Answers, from the trace of the kernel."""


def elements(facts):
    return facts.argument("values_ptr").shape[0]


def if_every_row_were_longest(facts):
    sizes = facts.sizes
    return sizes["rows"] * sizes["longest"]


def masked_share(facts):
    return facts.access("load", "values_ptr").masked_fraction


def used_share(facts):
    return 1 - masked_share(facts)
