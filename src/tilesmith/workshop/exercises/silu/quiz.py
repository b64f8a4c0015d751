"""Answers, from the trace of the kernel."""


def bytes_moved(facts):
    return facts.kernel.bytes


def bytes_with_x_twice(facts):
    return facts.kernel.bytes + facts.argument("x_ptr").loaded_bytes


def crossings_of_two_kernels(facts):
    """Sigmoid moves as much as the single kernel; the product reads one more matrix."""
    return 2 * crossings(facts) + facts.argument("x_ptr").loads_per_element


def crossings(facts):
    return facts.argument("x_ptr").loads_per_element + facts.argument("out_ptr").stores_per_element


def two_kernels_over_one(facts):
    return crossings_of_two_kernels(facts) / crossings(facts)
