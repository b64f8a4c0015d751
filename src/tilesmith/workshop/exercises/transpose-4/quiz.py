"""Answers, from the binary that the compiler makes of the starter."""


def _exchange(facts):
    """The shared accesses of the gather: it is the loads that meet in banks."""
    return max(facts.starter.target().shared_accesses, key=lambda one: one.wavefronts)


def turns_at_the_start(facts):
    return _exchange(facts).wavefronts


def turns_needed(facts):
    return _exchange(facts).ideal_wavefronts
