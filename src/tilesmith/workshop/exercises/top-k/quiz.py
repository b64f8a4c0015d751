"""Answers, from the trace of the kernel."""


def bytes_of_the_kernel(facts):
    return facts.kernel.bytes


def bytes_without_indices(facts):
    return facts.kernel.bytes - facts.argument("indices_ptr").stored_bytes


def passes_of_a_sort(facts):
    return facts.argument("x_ptr").shape[1]


def passes_of_the_kernel(facts):
    return facts.argument("values_ptr").shape[1]
