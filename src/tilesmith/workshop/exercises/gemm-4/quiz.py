"""Answers, from the traces of the kernel and of the starter, and from the data of the device."""

from tilesmith.hardware.devices import device

TILE = 64


def loaded_bytes(facts):
    return sum(one.loaded_bytes for one in facts.kernel.arguments)


def bytes_of_the_operands(facts):
    return sum(one.unique_loaded_bytes for one in facts.kernel.arguments)


def loaded_bytes_at_the_start(facts):
    return loaded_bytes(facts.starter)


def side_that_fills(facts):
    tiles = 1
    while tiles * tiles < device("h200").multiprocessors:
        tiles += 1
    return tiles * TILE


def side_that_almost_fills(facts):
    return side_that_fills(facts) - TILE
