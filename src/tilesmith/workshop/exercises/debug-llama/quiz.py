"""Answers, from running the stages of the case: the workshop stands beside them and asks through the command."""

import json
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


@cache
def _found(stage):
    """Everything that a stage finds, by name."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "stage.json"
        words = ["debug", "llama", "--stage", str(stage), "--reveal", "--json", str(result)]
        subprocess.run([sys.executable, "-m", "tilesmith", *words], check=True, capture_output=True)
        (found,) = json.loads(result.read_text())["stages"]
    return {fact["name"]: fact["value"] for part in ("shown", "evidence") for fact in found[part]["facts"]}
