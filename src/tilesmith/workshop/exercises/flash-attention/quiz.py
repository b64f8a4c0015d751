"""Answers, from the trace of the kernel."""


def bytes_of_scores(facts):
    """One score per pair of a query and a key: the first product does two operations per feature and pair."""
    pairs = operations_of_scores(facts) / (2 * facts.sizes["width"])
    return pairs * facts.access("load", "q_ptr").element_bytes


def bytes_of_queries(facts):
    return facts.argument("q_ptr").loaded_bytes


def operations(facts):
    return facts.kernel.flops_by_kind["dot fp16"]


def operations_of_scores(facts):
    return operations(facts) / 2
