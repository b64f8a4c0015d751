"""A module refuses a wrong argument with one sentence, in the constructor and in the call."""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest
import torch

import tilesmith.nn
from misuse import misuses_of

WRONG: dict[str, Any] = {
    "an object": object(), "a dict": {}, "a complex number": 1j, "bytes": b"a", "a string": "abc", "None": None,
    "-1": -1, "2**70": 2**70, "2**62": 2**62, "nan": float("nan"), "1.5": 1.5, "infinity": float("inf"),
    "a list of 1.5": [1.5], "a tensor": torch.zeros(2), "an empty list": [], "a tuple of -1": (-1, -1),
}  # fmt: skip
PLACED = {"device": None, "dtype": None}
HEADS = {"channels": 8, "heads": 2, "head_size": 4}
NO_SIZES = ("an object", "a dict", "a complex number", "bytes", "a string", "-1", "2**70", "2**62", "nan", "1.5")
CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "GELU": {"approximate": "none"},
    "AddRMSNorm": {"normalized_shape": 4, "eps": None, "elementwise_affine": True, **PLACED},
    "Attention": {
        "hidden_size": 8, "num_heads": 2, "num_kv_heads": None, "head_dim": None, "bias": False, "rope_base": 1e4,
        "causal": True, "window": None, "softcap": 0.0, "dropout": 0.0, **PLACED,
    },
    "AttentionPairBias": {**HEADS, "pair_channels": 4, **PLACED},
    "AvgPool2d": {
        "kernel_size": 2, "stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True,
        "divisor_override": None,
    },
    "Conv2d": {
        "in_channels": 2, "out_channels": 2, "kernel_size": 3, "stride": 1, "padding": 0, "dilation": 1, "groups": 1,
        "bias": True, "padding_mode": "zeros", **PLACED,
    },
    "CrossEntropyLoss": {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0},
    "EvoformerBlock": {
        "msa_channels": 8, "pair_channels": 8, "msa_heads": 2, "pair_heads": 2, "head_size": 4, "outer_channels": 4,
        "triangle_channels": 4, "transition_factor": 2, "msa_dropout": 0.1, "pair_dropout": 0.1, **PLACED,
    },
    "GeGLU": {"dim": 4, "hidden_dim": 8, "bias": False, "approximate": "tanh", "packed": False, **PLACED},
    "LayerNorm": {"normalized_shape": 4, "eps": 1e-5, "elementwise_affine": True, "bias": True, **PLACED},
    "Linear": {"in_features": 4, "out_features": 4, "bias": True, **PLACED},
    "LinearCrossEntropyLoss": {
        "in_features": 4, "num_classes": 5, "bias": False, "reduction": "mean", "ignore_index": None,
        "label_smoothing": 0.0, **PLACED,
    },
    "MSAColumnAttention": {**HEADS, **PLACED},
    "MSARowAttentionWithPairBias": {**HEADS, "pair_channels": 4, **PLACED},
    "MaxPool2d": {
        "kernel_size": 2, "stride": None, "padding": 0, "dilation": 1, "return_indices": False, "ceil_mode": False
    },
    "OuterProductMean": {"channels": 8, "pair_channels": 4, "hidden_channels": 4, "eps": 1e-3, **PLACED},
    "RMSNorm": {"normalized_shape": 4, "eps": None, "elementwise_affine": True, **PLACED},
    "RotaryEmbedding": {"rotary_dim": 4, "base": 1e4, "interleaved": False},
    "Softmax": {"dim": -1},
    "SwiGLU": {"dim": 4, "hidden_dim": 8, "bias": False, "packed": False, **PLACED},
    "SwiGLUTransition": {"channels": 4, "factor": 2, **PLACED},
    "Transition": {"channels": 4, "factor": 2, **PLACED},
    "TriangleAttention": {**HEADS, "starting": True, **PLACED},
    "TriangleMultiplication": {"channels": 4, "hidden_channels": None, "outgoing": True, **PLACED},
}  # fmt: skip
IMAGE = {"input": torch.randn(1, 2, 4, 4)}
ROWS = {"x": torch.randn(2, 4)}
ALIGNMENT = {"m": torch.randn(1, 2, 3, 8), "mask": torch.ones(1, 2, 3, dtype=torch.bool)}
LABELS = {"input": torch.randn(2, 4), "target": torch.tensor([0, 1])}
CALLS: dict[str, dict[str, Any]] = {
    "GELU": ROWS, "LayerNorm": ROWS, "RMSNorm": ROWS, "Linear": ROWS, "SwiGLU": ROWS, "GeGLU": ROWS, "Softmax": ROWS,
    "SwiGLUTransition": ROWS, "Transition": {**ROWS, "chunk": 1}, "AddRMSNorm": {**ROWS, "residual": ROWS["x"]},
    "Attention": {"x": torch.randn(1, 3, 8)}, "AvgPool2d": IMAGE, "MaxPool2d": IMAGE, "Conv2d": IMAGE,
    "CrossEntropyLoss": LABELS, "LinearCrossEntropyLoss": LABELS, "MSAColumnAttention": ALIGNMENT,
    "OuterProductMean": ALIGNMENT, "MSARowAttentionWithPairBias": {**ALIGNMENT, "z": torch.randn(1, 3, 3, 4)},
    "AttentionPairBias": {
        "a": torch.randn(1, 3, 8), "z": torch.randn(1, 3, 3, 4), "mask": torch.ones(1, 3, dtype=torch.bool)
    },
    "TriangleAttention": {"z": torch.randn(1, 3, 3, 8), "mask": torch.ones(1, 3, 3, dtype=torch.bool), "chunk": 2},
    "TriangleMultiplication": {"z": torch.randn(1, 3, 3, 4), "mask": torch.ones(1, 3, 3, dtype=torch.bool)},
    "RotaryEmbedding": {
        "q": torch.randn(1, 2, 3, 4), "k": torch.randn(1, 2, 3, 4), "positions": torch.arange(3)
    },
    "EvoformerBlock": {
        "m": ALIGNMENT["m"], "z": torch.randn(1, 3, 3, 8), "msa_mask": ALIGNMENT["mask"],
        "pair_mask": torch.ones(1, 3, 3, dtype=torch.bool),
    },
}  # fmt: skip


def test_every_module_is_tried() -> None:
    assert {*CONSTRUCTORS, "SiLU"} == {*CALLS, "SiLU"} == set(tilesmith.nn.__all__)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_wrong_argument_of_a_constructor_raises_one_sentence(name: str) -> None:
    module, right = getattr(tilesmith.nn, name), CONSTRUCTORS[name]
    module(**right)
    problems = []
    for argument in right:
        for what, value in WRONG.items():
            try:
                module(**{**right, argument: value})
            except (TypeError, ValueError) as error:
                text = str(error)
                if not text.startswith(f"{name}: ") or argument not in text or "\n" in text or len(text) > 300:
                    problems.append(f"{argument} {what}: {text[:200]}")
            except Exception as error:
                problems.append(f"{argument} {what}: {type(error).__name__} {str(error)[:200]}")
            else:
                if isinstance(right[argument], int) and right[argument] >= 0 and what in NO_SIZES:
                    problems.append(f"{argument} {what}: accepted")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", CALLS)
def test_wrong_argument_of_a_call_raises_one_sentence(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = getattr(tilesmith.nn, name)(**CONSTRUCTORS[name]).eval()
        module(**CALLS[name])
        problems, refused = [], 0
        for argument, what, arguments in misuses_of(module.forward, CALLS[name]):
            try:
                module(**arguments)
            except Exception as error:
                refused += 1
                text = str(error)
                # The sentence may be the operator's, which calls the argument by its own name.
                if type(error) not in (TypeError, ValueError) or ": " not in text[:40] or "\n" in text:
                    problems.append(f"{argument} {what}: {type(error).__name__} {text[:200]}")
    assert not problems, "\n".join(problems)
    assert refused > 10


def test_unknown_and_missing_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"^Transition: factors is no argument of the constructor$"):
        tilesmith.nn.Transition(4, factors=2)
    with pytest.raises(TypeError, match=r"^Linear: missing a required argument: 'out_features'$"):
        tilesmith.nn.Linear(4)  # type: ignore[call-arg]  # on purpose


def test_input_of_another_dtype_than_the_parameters_is_named() -> None:
    module = tilesmith.nn.SwiGLU(4, 8)
    with pytest.raises(TypeError, match="SwiGLU: x has dtype float64, but the parameters have float32"):
        module(torch.randn(2, 4, dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        assert module(torch.randn(2, 4, dtype=torch.float64).float()).dtype == torch.bfloat16


def test_whole_numbers_of_numpy_are_sizes() -> None:
    assert tilesmith.nn.Linear(numpy.int64(4), 3).weight.shape == (3, 4)


def test_transition_of_rows_is_the_same_in_chunks() -> None:
    module, x = tilesmith.nn.Transition(4, 2), torch.randn(5, 4)
    assert torch.allclose(module(x, chunk=2), module(x))
