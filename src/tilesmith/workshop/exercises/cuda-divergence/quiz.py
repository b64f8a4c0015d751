"""Answers, counted over the lanes of one warp."""

WARP = 32


def _active(side):
    """Return the share of active lanes if a warp runs each side that one of its lanes takes."""
    sides = {side(lane) for lane in range(WARP)}
    return WARP / (WARP * len(sides))


def active_inside(facts):
    return _active(lambda lane: lane % 2)


def all_active(facts):
    return _active(lambda lane: 0)


def active_by_warp(facts):
    return _active(lambda lane: lane // WARP % 2)
