"""Answers, from the trace of the kernel."""


def operations(facts):
    return facts.kernel.flops_by_kind["dot fp16"]


def operations_of_one_channel(facts):
    return operations(facts) / facts.sizes["channels"]


def loads_of_mask(facts):
    return facts.argument("mask_ptr").loads_per_element


def loads_of_a(facts):
    return facts.argument("a_ptr").loads_per_element
