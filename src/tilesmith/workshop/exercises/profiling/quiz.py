"""Answers, from Tilesmith's datasheet of the device and the numbers in the questions."""

from statistics import mean

from tilesmith.hardware.devices import device

ELEMENTS, BYTES_EACH, SECONDS = 8192 * 4096, 2, 40e-6


def _bandwidth():
    return device("H200").memory_tb_per_s * 1e12


def share_of_bandwidth(facts):
    return 2 * share_with_reads_only(facts)


def share_with_reads_only(facts):
    return ELEMENTS * BYTES_EACH / SECONDS / _bandwidth()


def shortest_microseconds(facts):
    return 2 * shortest_with_reads_only(facts)


def shortest_with_reads_only(facts):
    return ELEMENTS * BYTES_EACH / _bandwidth() * 1e6


def rate_of_both(facts):
    runs = [(1, 0.001), (1, 0.004)]
    return sum(gigabytes for gigabytes, _ in runs) / sum(seconds for _, seconds in runs)


def mean_of_rates(facts):
    return mean([1 / 0.001, 1 / 0.004])
