"""Answers, from the trace of the kernel."""


def operations(facts):
    return facts.kernel.flops_by_kind["dot fp16"]


def multiply_adds(facts):
    return operations(facts) / 2


def operations_per_loaded_byte(facts):
    return operations(facts) / sum(one.loaded_bytes for one in facts.kernel.arguments)


def operations_per_unique_byte(facts):
    return operations(facts) / sum(one.unique_loaded_bytes for one in facts.kernel.arguments)
