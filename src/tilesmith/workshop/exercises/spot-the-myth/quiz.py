"""Answers, from a trace of each claim's kernel."""

from pathlib import Path

import torch
import triton
import triton.language as tl

from tilesmith.workshop.checking.traced_call import trace_call


@triton.jit
def transpose_kernel(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + column * 64 + row, tl.load(x_ptr + row * 64 + column))


@triton.jit
def formula_kernel(x_ptr, out_ptr, elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * x + x, mask=mask)


def efficiency_of_transposed_store(facts):
    return _access(_transposed(32, 32), "store").efficiency


def efficiency_of_one_column(facts):
    return _access(_transposed(1, 64), "store").efficiency


def tiles_that_compile(facts):
    return sum(bool(made) and made[0].targets["cuda:90"].error is None for made in map(_tile, (32, 33)))


def both_tiles(facts):
    return 2


def bytes_of_masked_copy(facts):
    return _formula()[0].bytes


def bytes_of_all_lanes(facts):
    load = _access(_formula(), "load")
    return load.bytes * 2 / (1 - load.masked_fraction)


def loads_of_a_formula(facts):
    return _access(_formula(), "load").accesses_per_element


def uses_in_the_formula(facts):
    return 3


def _tile(columns):
    return _transposed(32, columns)


def _transposed(rows, columns):
    def run(x):
        out = torch.empty(64, 64)
        transpose_kernel[(64 // rows, 64 // columns)](x, out, ROWS=rows, COLUMNS=columns)
        return out

    return trace_call(run, {"x": torch.zeros(64, 64)}, Path(__file__)).kernels


def _formula():
    def run(x):
        out = torch.empty_like(x)
        formula_kernel[(1,)](x, out, x.numel(), BLOCK_SIZE=256)
        return out

    return trace_call(run, {"x": torch.zeros(100)}, Path(__file__)).kernels


def _access(kernels, kind):
    return next(one for one in kernels[0].accesses if one.kind == kind)
