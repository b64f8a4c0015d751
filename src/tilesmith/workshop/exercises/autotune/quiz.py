"""Answers, counted on a list of Triton configurations."""

from itertools import product

import triton

MOST_SHARED_BYTES = 227 * 1024
SIDES, INNER, STAGES = (64, 128, 256), (32, 64, 128), (2, 3, 4, 5)


def _candidates():
    return [
        triton.Config({"ROWS": rows, "COLUMNS": columns, "INNER": inner}, num_stages=stages)
        for rows, columns, inner, stages in product(SIDES, SIDES, INNER, STAGES)
    ]


def _fits(config):
    tile = config.kwargs
    elements = (tile["ROWS"] + tile["COLUMNS"]) * tile["INNER"]
    return config.num_stages * elements * 2 <= MOST_SHARED_BYTES


def all_candidates(facts):
    return len(_candidates())


def candidates_added(facts):
    return 2 * len(SIDES) + len(INNER) + len(STAGES)


def candidates_that_fit(facts):
    return sum(map(_fits, _candidates()))


def candidates_that_do_not_fit(facts):
    return all_candidates(facts) - candidates_that_fit(facts)


def tunings_in_buckets(facts):
    return len({triton.next_power_of_2(rows) for rows in range(1, 1001)})


def tunings_by_exact_size(facts):
    return len(set(range(1, 1001)))
