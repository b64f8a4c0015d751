"""Softmax along one dimension: y = exp(x − max x) / Σ exp(x − max x).

Forward moves two elements per output (read x, write y) and does about five flops on each, one of them an exponential;
backward moves three (read y and dy, write dx) and does about four. Memory-bound on every GPU, so:

- a row is read from memory once. It stays in registers between its sum and its result; a row too wide for that is
  read again from the cache, and its maximum and sum are found in the same first pass;
- few very long rows are shared among many programs: a first launch finds what each share adds to the row's sum, a
  second one, finding the shares still in the L2 cache, finishes them;
- the dimension may be any: its elements are walked where they lie, with neighbouring rows side by side in a tile where
  those are the neighbours in memory;
- only the result is kept for the backward.
"""

from tilesmith.ops.softmax.operator import SPEC, softmax

__all__ = ["SPEC", "softmax"]
