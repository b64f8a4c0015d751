"""Answers, from the sizes of the model."""

import math


def loss_of_guessing(facts):
    return math.log(facts.sizes["vocabulary"])


def bits_of_guessing(facts):
    return math.log2(facts.sizes["vocabulary"])


def share_that_trains(facts):
    return 1 / facts.sizes["parameters"]


def share_before_the_norm(facts):
    return 1 - share_that_trains(facts)
