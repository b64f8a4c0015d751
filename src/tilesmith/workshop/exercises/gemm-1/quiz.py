"""Answers, from the order in which programs handle tiles."""

PROGRAMS = 4


def bands_grouped(facts):
    """Count the bands from the addresses that the first programs store to."""
    programs = sorted(facts.kernel.program_facts, key=lambda one: one.program)[:PROGRAMS]
    boxes = [tile.box for one in programs for tile in one.tiles if tile.argument == "out_ptr"]
    return len({box[0] for box in boxes}) + len({box[1] for box in boxes})


def bands_row_by_row(facts):
    """One band of a, and one band of b per program."""
    return 1 + PROGRAMS


def bytes_grouped(facts):
    return bands_grouped(facts) * _band_bytes(facts)


def bytes_row_by_row(facts):
    return bands_row_by_row(facts) * _band_bytes(facts)


def bytes_loaded(facts):
    """Every program loads two bands."""
    return 2 * PROGRAMS * _band_bytes(facts)


def _band_bytes(facts):
    return sum(one.loaded_bytes for one in facts.kernel.arguments) / (2 * facts.kernel.programs)
