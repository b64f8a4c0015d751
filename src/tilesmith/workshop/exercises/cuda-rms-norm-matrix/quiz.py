"""Answers, from the counts of the program or from the steps of a loop."""


def blocks(facts):
    return facts.sizes["blocks"]


def launches(facts):
    return facts.sizes["launches"]


def share_of_steps(facts):
    threads = facts.sizes["threads"] // facts.sizes["blocks"]
    steps = len(range(0, 100, threads))
    return 100 / (steps * threads)


def share_of_idle_steps(facts):
    return 1 - share_of_steps(facts)
