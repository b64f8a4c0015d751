"""Answers, from the trace of the kernel."""


def operations(facts):
    return facts.kernel.flops_by_kind["dot fp16"]


def operations_of_one_tap(facts):
    return operations(facts) / facts.sizes["window"] ** 2


def growth_of_windows(facts):
    """The matrix has one row per place, with every element of its window. Divide by the elements of x."""
    sizes = facts.sizes
    places = facts.argument("out_ptr").shape[1] * facts.argument("out_ptr").shape[2]
    return places * channels_times_window(facts) / (sizes["channels"] * sizes["height"] * sizes["width"])


def channels_times_window(facts):
    return facts.sizes["channels"] * facts.sizes["window"] ** 2
