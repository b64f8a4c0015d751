"""Answers, from the trace of the kernel."""


def bytes_of_k(facts):
    return facts.argument("k_ptr").unique_loaded_bytes


def bytes_after_the_copy(facts):
    heads, key_heads = facts.sizes["heads"], facts.sizes["key_heads"]
    return bytes_of_k(facts) * heads // key_heads


def bytes_loaded(facts):
    return facts.argument("k_ptr").loaded_bytes
