"""Answers, from the clock of the pretended GPU."""

from statistics import mean, median

from tilesmith.workshop.checking.pretended_gpu import PretendedGpu

RUNS = (2.0, 2.0, 2.0, 9.0, 2.0)


def host_without_waiting(facts):
    gpu = PretendedGpu()
    gpu.launch(2.0)
    return gpu.host


def the_work(facts):
    gpu = PretendedGpu()
    gpu.launch(2.0)
    gpu.synchronize()
    return gpu.host


def mean_above_median(facts):
    return mean(RUNS) - median(RUNS)


def the_mean(facts):
    return mean(RUNS)
