"""Answers, from the trace of the kernel."""


def programs_of_512(facts):
    return -(-facts.argument("x_ptr").shape[0] // 512)


def rounded_down(facts):
    return facts.argument("x_ptr").shape[0] // 512


def threads(facts):
    return 32 * facts.target().num_warps


def threads_with_an_element(facts):
    return min(64, threads(facts))
