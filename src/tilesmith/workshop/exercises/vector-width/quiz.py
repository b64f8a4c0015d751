"""Answers, from the binary of the kernels."""


def bytes_of_the_starter(facts):
    return facts.starter.access("load", "x_ptr").vector_bytes


def bytes_of_the_vector(facts):
    return facts.access("load", "x_ptr").vector_bytes


def elements_of_the_vector(facts):
    return bytes_of_the_vector(facts) / 2
