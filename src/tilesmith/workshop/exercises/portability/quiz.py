"""Answers, from the binaries for both vendors."""

from tilesmith.hardware.devices import for_target


def _threads(facts, target):
    return facts.target(target).num_warps * for_target(target).warp_size


def threads_on_amd(facts):
    return _threads(facts, "hip:gfx942")


def threads_on_nvidia(facts):
    return _threads(facts, "cuda:90")


def shared_on_nvidia(facts):
    return facts.target("cuda:90").shared_bytes


def shared_difference(facts):
    return shared_on_nvidia(facts) - facts.target("hip:gfx942").shared_bytes
