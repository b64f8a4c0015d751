"""Answers, from the trace of the kernel."""


def pairs_of_blocks(facts):
    """Every pair loads its block of keys once."""
    return facts.access("load", "k_ptr").executions


def all_pairs_of_blocks(facts):
    return facts.kernel.programs**2


def share_of_use(facts):
    length = facts.sizes["length"]
    of_use = sum(query + 1 for query in range(length))
    computed = facts.kernel.flops_by_kind["dot fp16"] / (4 * facts.sizes["width"])
    return of_use / computed


def share_for_nothing(facts):
    return 1 - share_of_use(facts)
