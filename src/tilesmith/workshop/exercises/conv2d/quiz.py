"""Answers, from what the kernel did."""


def operations(facts):
    return facts.kernel.flops_by_kind["dot fp16"]


def operations_of_one_tap(facts):
    return operations(facts) / facts.sizes["window"] ** 2


def growth_of_windows(facts):
    """A row for each place, with every element of its window, over the elements of x."""
    sizes = facts.sizes
    places = facts.argument("out_ptr").shape[1] * facts.argument("out_ptr").shape[2]
    return places * channels_times_window(facts) / (sizes["channels"] * sizes["height"] * sizes["width"])


def channels_times_window(facts):
    return facts.sizes["channels"] * facts.sizes["window"] ** 2
