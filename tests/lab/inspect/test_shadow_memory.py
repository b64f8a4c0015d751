"""Shadow memory remembers enough readers to see every store that another program's load conflicts with."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from tilesmith.lab.inspect.tracing.shadow_memory import StorageShadow

PROGRAMS = (1, 2, 3)
SUBSETS = (np.array([0]), np.array([1]), np.array([0, 1]))  # the places that one load touches


def test_store_sees_another_reader_after_any_three_loads() -> None:
    tensor = torch.zeros(2)
    start = tensor.data_ptr()
    loads = list(product(PROGRAMS, SUBSETS))
    for sequence in product(loads, repeat=3):
        for program in PROGRAMS:
            shadow = StorageShadow(start, start + 8, 4, tensor, None)
            readers: tuple[set[int], set[int]] = (set(), set())
            for reader, places in sequence:
                shadow.load(places, reader)
                for place in places:
                    readers[place].add(reader)
            _, _, seen = shadow.store(np.array([0, 1]), program)
            others = [0, 0] if seen is None else seen.tolist()
            history = [(reader, places.tolist()) for reader, places in sequence]
            for place, other in enumerate(others):
                right = readers[place] - {program}
                assert other in right if right else other == 0, (history, program, place)
