"""Answers, from Tilesmith's table of devices; the first three are about the GPU of this machine, or about an H200."""

import torch

from tilesmith.hardware.devices import device, match

KILOBYTE, MEGABYTE = 1024, 1024**2
NEEDED = 96 * KILOBYTE


def _here():
    found = match(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return found or device("H200")


def threads_of_a_multiprocessor(facts):
    architecture = _here().architecture
    return architecture.warps * architecture.warp_size


def threads_of_the_gpu(facts):
    return _here().multiprocessors * threads_of_a_multiprocessor(facts)


def threads_of_full_blocks(facts):
    architecture = _here().architecture
    return _here().multiprocessors * architecture.warps_per_block * architecture.warp_size


def megabytes_of_registers(facts):
    return _here().multiprocessors * _here().architecture.registers * 4 / MEGABYTE


def megabytes_of_shared_memory(facts):
    return _here().multiprocessors * _here().architecture.shared_bytes / MEGABYTE


def operations_per_byte(facts):
    return _here().tflop_per_s["fp16"] / _here().memory_tb_per_s


def operations_per_byte_in_float32(facts):
    return _here().tflop_per_s["fp32"] / _here().memory_tb_per_s


def threads_of_four_wavefronts(facts):
    return 4 * device("MI300X").architecture.warp_size


def threads_of_four_warps(facts):
    return 4 * device("H200").architecture.warp_size


def _programs(name):
    architecture = device(name).architecture
    return architecture.shared_bytes // (NEEDED + architecture.reserved_shared_bytes)


def programs_by_shared_memory(facts):
    return _programs("H200")


def programs_on_amd(facts):
    return _programs("MI300X")
