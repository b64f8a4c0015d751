"""Answers, from the trace of the kernel."""


def lanes_masked_off(facts):
    load = facts.access("load", "x_ptr")
    return round(load.masked_fraction * facts.kernel.programs * load.shape[0])


def lanes_used_by_the_last(facts):
    return facts.sizes["elements"] % facts.kernel.constants["BLOCK_SIZE"]


def programs_with_half_the_block(facts):
    return -(-facts.access("load", "x_ptr").unique_bytes // 4 // 128)


def programs_rounded_down(facts):
    return facts.sizes["elements"] // 128
