"""Answers, from the trace of the kernel."""


def loads_of_a_plane(facts):
    load = facts.argument("x_ptr")
    return load.loaded_bytes / 4 / facts.sizes["planes"]


def loads_without_edges(facts):
    return facts.sizes["height"] * facts.sizes["width"] * facts.sizes["window"] ** 2


def bytes_of_a_plane(facts):
    return facts.argument("x_ptr").unique_loaded_bytes / facts.sizes["planes"]


def bytes_of_all_loads(facts):
    return facts.argument("x_ptr").loaded_bytes / facts.sizes["planes"]
