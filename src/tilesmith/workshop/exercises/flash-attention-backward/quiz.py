"""Answers, from the trace of the kernels."""


def products_per_pair(facts):
    """The operations of all products, divided by those of one."""
    sizes = facts.sizes
    one = 2 * sizes["heads"] * sizes["length"] ** 2 * sizes["width"]
    return sum(kernel.flops_by_kind["dot fp16"] for kernel in facts.kernels) / one


def products_without_repeats(facts):
    """Both kernels compute the same scores and weight gradients."""
    return products_per_pair(facts) - 2


def bytes_of_log_total(facts):
    return facts.argument("log_total_ptr").unique_loaded_bytes


def bytes_of_weights(facts):
    return 2 * facts.sizes["heads"] * facts.sizes["length"] ** 2
