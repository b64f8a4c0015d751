"""Answers, from the traces of the kernel and of the starter."""


def load_requests(facts):
    return facts.access("load", "x_ptr").requests


def load_requests_at_the_start(facts):
    return load_requests(facts.starter)


def requests_of_single_elements(facts):
    load = facts.access("load", "x_ptr")
    return load.requests * load.vector_bytes / load.element_bytes
