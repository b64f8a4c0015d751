"""Answers, from the trace of the kernel."""


def loads_by_rows(facts):
    """A program with a single row loads all weights, so each weight is loaded once per row of x."""
    return facts.argument("x_ptr").shape[0]


def loads_by_tiles(facts):
    return facts.argument("gate_weight_ptr").loads_per_element


def operations_of_products(facts):
    return facts.kernel.flops_by_kind["dot fp16"]


def operations_of_one_product(facts):
    return operations_of_products(facts) / 2
