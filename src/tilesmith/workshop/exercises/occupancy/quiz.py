"""Answers, from the trace of the kernel."""

REGISTERS, WARPS, LANES = 65536, 64, 32


def registers_for_full_occupancy(facts):
    return REGISTERS / (WARPS * LANES)


def registers_of_a_warp(facts):
    return REGISTERS / WARPS


def fewest_requests(facts):
    return facts.kernel.bytes / (16 * LANES)


def fewest_requests_of_x(facts):
    return fewest_requests(facts) - facts.argument("weight_ptr").loaded_bytes / (16 * LANES)
