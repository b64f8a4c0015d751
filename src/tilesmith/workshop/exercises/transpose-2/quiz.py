"""Answers, from the trace of the kernel."""

SECTOR_BYTES = 32


def shared_bytes(facts):
    return facts.target().shared_bytes


def no_shared_bytes(facts):
    return 0


def floats_in_a_sector(facts):
    return SECTOR_BYTES // facts.access("load", "x_ptr").element_bytes


def halves_in_a_sector(facts):
    """Two float16 take the space of one float32."""
    return 2 * floats_in_a_sector(facts)
