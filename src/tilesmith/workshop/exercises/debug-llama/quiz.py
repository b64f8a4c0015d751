"""Answers, from a run of all stages with `tilesmith debug llama`: the workshop may not import the stages."""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path


def loss_of_guessing(facts):
    return _found(1)["loss of guessing, ln(vocabulary)"]


def first_loss(facts):
    return _found(1)["loss of the first step"]


def sectors_features_first(facts):
    return _found(2)["sectors per request, features first"]


def sectors_if_packed(facts):
    return _found(2)["sectors per request if packed, features first"]


def loads_of_x(facts):
    return _found(4)["loads of each element of x, 32 outputs"]


def loads_of_weight(facts):
    return _found(4)["loads of each element of the weight, 8 rows"]


def work_of_sixteen(facts):
    return _found(3)["amount of work"]


def times_not_waiting(facts):
    return _found(3)["16 sequences relative to 4, not waiting"]


def parameters_without_gradient(facts):
    return _found(5)["parameters without a gradient"]


def parameters_in_all(facts):
    return _found(5)["all parameters"]


def loss_over_v1(facts):
    return _loss_over_v1(6)


def loss_over_v1_with_cut_gradients(facts):
    return _loss_over_v1(5)


def _loss_over_v1(stage):
    return _found(stage)["loss of step 40"] / _found(stage)["loss of step 40 of v1"]


def _found(stage):
    """Return everything that a stage finds, by name."""
    return _stages()[stage - 1]


@cache
def _stages():
    """Run all six stages in one process, which starts only once."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "stages.json"
        words = ["debug", "llama", "--json", str(result)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # the model is small: more threads double the CPU time
        subprocess.run([sys.executable, "-m", "tilesmith", *words], check=True, capture_output=True, env=one_thread)
        stages = json.loads(result.read_text())["stages"]
    return [
        {fact["name"]: fact["value"] for part in ("shown", "evidence") for fact in stage[part]["facts"]}
        for stage in stages
    ]
