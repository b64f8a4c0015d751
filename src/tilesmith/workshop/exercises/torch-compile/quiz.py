"""Answers, from compiling such functions with torch.compile on this machine."""

import torch


def _with_item(x):
    y = x * 2
    if y.sum().item() > 0:
        y = y + 1
    return y * 3


def _without_item(x):
    return (x * 2 + 1) * 3


def graphs_with_item(facts):
    return torch._dynamo.explain(_with_item)(torch.ones(4)).graph_count


def graphs_without_item(facts):
    return torch._dynamo.explain(_without_item)(torch.ones(4)).graph_count


def compilations_for_sizes(facts):
    return _compilations(dynamic=None)


def one_for_each_size(facts):
    return _compilations(dynamic=False)


def _compilations(dynamic):
    compiled = []

    def counting(graph, example_inputs):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    function = torch.compile(_without_item, backend=counting, dynamic=dynamic)
    for rows in (8, 16, 24, 32):
        function(torch.ones(rows, 4))
    return len(compiled)
