"""Answers, from the widths of a wavefront and a warp in Tilesmith's table of devices."""

from tilesmith.hardware.devices import device

THREADS = 96


def _lanes(name):
    return device(name).architecture.warp_size


def idle_lanes_amd(facts):
    return 1 - THREADS / (_lanes("MI300X") * -(-THREADS // _lanes("MI300X")))


def idle_lanes_nvidia(facts):
    return 1 - THREADS / (_lanes("H200") * -(-THREADS // _lanes("H200")))


def threads_of_four_warps(facts):
    return 4 * _lanes("MI300X")


def threads_of_four_warps_nvidia(facts):
    return 4 * _lanes("H200")
