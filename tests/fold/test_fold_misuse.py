"""A call with a wrong argument computes, or raises one sentence that names the function and an argument."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import tilesmith.fold
from misuse import misuses_of, unclear
from tilesmith.fold.pair_bias import _from_heads
from tilesmith.spec import Inputs


def _attention() -> Inputs:
    q, k, v = (torch.randn(2, 3, 2, 4, 4) for _ in range(3))
    mask = torch.ones(2, 3, 1, 1, 4, dtype=torch.bool)
    return {"q": q, "k": k, "v": v, "bias": torch.randn(2, 1, 2, 4, 4), "mask": mask}


def _attention_of_lengths() -> Inputs:
    return {**_attention(), "mask": None, "kv_lengths": torch.ones(2, 3, 1, 1, 1, dtype=torch.int32)}


def _update() -> Inputs:
    shapes = {
        "norm_in_weight": (4,), "norm_in_bias": (4,), "p_in_weight": (6, 4), "p_in_bias": (6,), "g_in_weight": (6, 4),
        "g_in_bias": (6,), "norm_out_weight": (3,), "norm_out_bias": (3,), "p_out_weight": (4, 3), "p_out_bias": (4,),
        "g_out_weight": (4, 4), "g_out_bias": (4,),
    }  # fmt: skip
    given = {name: torch.randn(shape) for name, shape in shapes.items()}
    return {"x": torch.randn(1, 3, 3, 4), "mask": torch.ones(1, 3, 3), **given}


def _pair_bias() -> Inputs:
    vectors = {name: torch.randn(4) for name in ("w_ln_a", "b_ln_a", "b_proj_q", "b_proj_k", "b_proj_v", "b_proj_g",
                                                 "w_ln_q", "b_ln_q", "w_ln_k", "b_ln_k", "b_proj_o")}  # fmt: skip
    matrices = {f"w_proj_{letter}": torch.randn(4, 4) for letter in "qkvgo"}
    pairs = {"w_proj_z": torch.randn(2, 3), "b_proj_z": torch.randn(2), "w_ln_z": torch.randn(3),
             "b_ln_z": torch.randn(3)}  # fmt: skip
    return {
        "single_repr": torch.randn(2, 5, 4), "pair_repr": torch.randn(2, 5, 5, 3), "mask": torch.ones(2, 5),
        "num_heads": 2, **vectors, **matrices, **pairs,
    }  # fmt: skip


def _first_pair_bias() -> Inputs:
    """The form before 0.10, called by name."""
    given = _pair_bias()
    kept = ("mask", "num_heads", "w_proj_z", "w_proj_g", "w_proj_o", "w_ln_z", "b_ln_z", "b_proj_z", "b_proj_g",
            "b_proj_o")  # fmt: skip
    heads = {name: torch.randn(2, 2, 5, 2) for name in ("q", "k", "v")}
    return {"s": given["single_repr"], **heads, "z": given["pair_repr"], **{name: given[name] for name in kept}}


CALLS: dict[str, tuple[Any, Any, Any]] = {
    "attention": (tilesmith.fold.triangle_attention, tilesmith.fold.triangle_attention, _attention),
    "lengths": (tilesmith.fold.triangle_attention, tilesmith.fold.triangle_attention, _attention_of_lengths),
    "update": (
        tilesmith.fold.triangle_multiplicative_update, tilesmith.fold.triangle_multiplicative_update, _update
    ),
    "pair bias": (tilesmith.fold.attention_pair_bias, tilesmith.fold.attention_pair_bias, _pair_bias),
    "first pair bias": (tilesmith.fold.attention_pair_bias, _from_heads, _first_pair_bias),
    "mask": (
        tilesmith.fold.mask_to_kv_lengths, tilesmith.fold.mask_to_kv_lengths,
        lambda: {"mask": torch.ones(2, 3, 1, 1, 4, dtype=torch.bool)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_wrong_arguments_of_fold_raise_one_sentence(call: str) -> None:
    function, described, make = CALLS[call]
    torch.manual_seed(0)
    inputs = make()
    function(**inputs)
    problems, refused = [], 0
    for argument, what, arguments in misuses_of(described, inputs):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(**arguments)
        except Exception as error:
            refused += 1
            problem = unclear(function.__name__, arguments, error)
            if problem:
                problems.append(f"{argument} {what}: {problem}")
    assert not problems, "\n".join(problems)
    assert refused > 10


def test_missing_and_unknown_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="triangle_attention: missing a required argument: 'k'"):
        tilesmith.fold.triangle_attention(torch.randn(1, 1, 1, 2, 4))  # type: ignore[call-arg]  # on purpose
    with pytest.raises(TypeError, match="triangle_multiplicative_update: got an unexpected keyword argument 'y'"):
        tilesmith.fold.triangle_multiplicative_update(torch.randn(1, 2, 2, 4), y=1)  # type: ignore[call-arg]  # on purpose
