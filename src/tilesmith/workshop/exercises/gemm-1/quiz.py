"""Answers, from the order in which programs take tiles."""


def bands_grouped(facts):
    """From where the first four programs store."""
    programs = sorted(facts.kernel.program_facts, key=lambda one: one.program)[:4]
    boxes = [tile.box for one in programs for tile in one.tiles if tile.argument == "out_ptr"]
    return len({box[0] for box in boxes}) + len({box[1] for box in boxes})


def bands_row_by_row(facts):
    return _bands(tiles_across=4, group=1, programs=4)


def bands_of_sixty_four(facts):
    return _bands(tiles_across=64, group=8, programs=64)


def bands_of_sixty_four_row_by_row(facts):
    return _bands(tiles_across=64, group=1, programs=64)


def _bands(tiles_across, group, programs):
    tiles = [
        (number // (group * tiles_across) * group + number % group, number % (group * tiles_across) // group)
        for number in range(programs)
    ]
    return len({down for down, _ in tiles}) + len({across for _, across in tiles})
