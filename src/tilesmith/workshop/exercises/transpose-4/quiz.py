"""Answers, from the compiled binary of the starter."""


def _exchange(facts):
    """Return the shared-memory loads of the gather, which have the bank conflicts."""
    return max(facts.starter.target().shared_accesses, key=lambda one: one.wavefronts)


def turns_at_the_start(facts):
    return _exchange(facts).wavefronts


def turns_needed(facts):
    return _exchange(facts).ideal_wavefronts
