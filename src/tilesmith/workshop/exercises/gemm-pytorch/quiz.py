"""Answers, from the datasheet of an H200."""

from tilesmith.hardware.devices import device


def operations_per_byte(facts):
    gpu = device("H200")
    return gpu.tflop_per_s["fp16"] / gpu.memory_tb_per_s


def balanced_side(facts):
    return 3 * operations_per_byte(facts)


def _intensity(m, n, k, element_bytes=2):
    return 2 * m * n * k / (element_bytes * (m * k + k * n + m * n))


def intensity_of_a_token(facts):
    return _intensity(1, 4096, 4096)


def intensity_of_a_square(facts):
    return _intensity(4096, 4096, 4096)
