"""Choose the kernel that computes a GEMM.

A *form* is one kernel with its launch configuration (`ops/runtime/forms.py`). `takes` says whether a form can compute a
problem, `suits` whether it is expected to be the fastest. The first form in FORMS that does both computes the problem.
The conditions stand in the forms' own modules: `half_on_hopper.py`, `exact_on_hopper.py`, `by_tma.py` and
`by_pointers.py`.

To add a kernel: write its form in a module beside these (`form.py` says what a form has), and list it in FORMS before
every form that is slower for the same problems. A sweep names a form by `ts.ops.configured(form="pointers")`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilesmith.ops.matmul.planning.by_pointers import Outer, Pointers, SplitInTile, StoredByPointers
from tilesmith.ops.matmul.planning.by_tma import StoredByTma, Tma
from tilesmith.ops.matmul.planning.exact_on_hopper import ExactRegisters, ExactShared
from tilesmith.ops.matmul.planning.form import ProductForm, TileConfig, with_split_k
from tilesmith.ops.matmul.planning.half_on_hopper import Half
from tilesmith.ops.matmul.planning.half_tiles import HalfTiles
from tilesmith.ops.matmul.planning.problem import Problem
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.forms import first_form

FORMS: tuple[ProductForm[Any], ...] = (
    Outer(),  # any GPU, any dtype, products of little depth
    HalfTiles(),  # Hopper, bf16 and fp16: tiles of many sizes
    Half(),  # Hopper, bf16 and fp16: stores a tile while the next one is multiplied
    ExactRegisters(),  # Hopper, exact fp32 as bf16x3, the parts of a in registers
    ExactShared(),  # Hopper, exact fp32 as bf16x3, split one step ahead into shared memory
    SplitInTile(),  # exact fp32 as bf16x3 on any NVIDIA GPU, split in each tile
    StoredByTma(),  # exact fp32, split into bf16x3 by a kernel before; Hopper loads the parts by TMA
    StoredByPointers(),  # the same, loaded by pointers
    Tma(),  # Hopper, operands loaded by TMA
    Pointers(),  # any GPU, any strides
)
"""In order of preference. The last form takes and suits every problem."""

_BY_NAME = {form.name: form for form in FORMS}
_TILE_SIZES = frozenset({"BLOCK_M", "BLOCK_N", "BLOCK_K"})


def choose(problem: Problem) -> tuple[ProductForm[Any], Config]:
    """Return the form that computes the problem, and its config."""
    form = _first_choice(problem)
    config = problem.plan.choose(form.config(problem), form.name, *problem.key)
    config = replace(config, form=form.name)  # an override may have named a form that cannot
    if isinstance(config, TileConfig):
        config = with_split_k(config, problem)
    # `settled` makes the config valid. It may name another form in config.form, which then settles the config.
    config = form.settled(problem, config)
    while (other := _form_of(config)) is not form:
        form, config = other, other.settled(problem, config)
    return form, config


def _form_of(config: Config) -> ProductForm[Any]:
    return _BY_NAME[config.fields()["form"]]


def _first_choice(problem: Problem) -> ProductForm[Any]:
    """Return the form that an override names, if the form takes the problem; else the first that suits.

    Where an override sets a tile size, forms without that field are skipped.
    """
    overrides = dict(dispatch.state().overrides)
    sizes = _TILE_SIZES & overrides.keys()
    forms = [form for form in FORMS if sizes <= form.config_type().fields().keys()]
    named = _BY_NAME.get(overrides.get("form", ""))
    return named if named in forms and named.takes(problem) else first_form(forms, problem)
