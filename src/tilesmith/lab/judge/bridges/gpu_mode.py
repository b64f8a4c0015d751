"""GPU MODE's reference kernels: a folder with `reference.py` and `task.yml`; candidates define `custom_kernel`.

`generate_input(**arguments)` makes the inputs and `ref_kernel(data)` is the definition. The tests of `task.yml` are the
given sizes. The seeds in it are not used, since they are public.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tilesmith.lab.judge.bridges.trusted_source import load
from tilesmith.lab.judge.candidate import Candidate
from tilesmith.lab.judge.task import Rules, Task, TaskError
from tilesmith.spec import Case, Layout, Spec

_ROUNDINGS = 4
_STAND_IN_UTILS = "def __getattr__(name):\n    return lambda *values, **options: (lambda *more, **rest: None)\n"
_STAND_IN_TASK = "import torch\ninput_t = object\noutput_t = torch.Tensor\n"


def is_task(path: Path) -> bool:
    return path.is_dir() and (path / "reference.py").is_file() and (path / "task.yml").is_file()


def task_of(path: Path, rules: Rules | None = None) -> Task:
    """Return the task of a folder. Raises TaskError."""
    module = load(path / "reference.py", _neighbours(path))
    for name in ("generate_input", "ref_kernel"):
        if not hasattr(module, name):
            raise TaskError(f"{path / 'reference.py'}: defines no {name}")
    tests = _tests((path / "task.yml").read_text(encoding="utf-8"), path)
    benchmarks = _listed("benchmarks", (path / "task.yml").read_text(encoding="utf-8"), path)
    arguments = {f"test {number}": one for number, one in enumerate(tests)}
    arguments |= {f"benchmark {number}": one for number, one in enumerate(benchmarks)}
    cases = [
        Case(name, **{key: value for key, value in one.items() if type(value) is int and key != "seed"})
        for name, one in arguments.items()
    ]
    given, timed = cases[: len(tests)], cases[len(tests) :]

    def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
        given = {**arguments.get(case.name, {}), **case.sizes}
        if any("seed" in one for one in tests):
            given["seed"] = int(torch.randint(2**31, ()))
        made = module.generate_input(**given)
        values = list(made) if isinstance(made, tuple | list) else [made]
        return {f"data_{number}": value for number, value in enumerate(values)}

    def reference(**inputs: Any) -> Any:
        values = tuple(inputs.values())
        return module.ref_kernel(values if len(values) > 1 else values[0])

    spec = Spec(
        name=path.name, op=reference, reference=reference, cases=given, make_inputs=make_inputs,
        dtypes=(torch.float32,), differentiable=False, roundings=_ROUNDINGS,
    )  # fmt: skip
    several = len(make_inputs(cases[0], torch.float32, "cpu", Layout("", lambda one: one))) > 1
    task = Task(
        spec=spec, rules=replace(rules or Rules(torch="any"), gradients="none", in_place=True), hidden=(),
        function_names=("custom_kernel",), style="packed" if several else "positional",
    )  # fmt: skip
    return replace(task, timed=replace(task, spec=replace(spec, cases=timed))) if timed else task


def with_neighbours(candidate: Candidate, path: Path) -> Candidate:
    """Return the candidate with the files that a submission imports: types, and helpers without a meaning here."""
    types = path / "task.py"
    text = types.read_bytes() if types.is_file() else _STAND_IN_TASK.encode()
    return replace(candidate, files={"task.py": text, "utils.py": _STAND_IN_UTILS.encode(), **candidate.files})


def _neighbours(path: Path) -> dict[str, ModuleType]:
    found = {}
    for name, text in (("task", _STAND_IN_TASK), ("utils", _STAND_IN_UTILS)):
        module = found[name] = ModuleType(name)
        file = path / f"{name}.py"
        exec(file.read_text(encoding="utf-8") if file.is_file() and name == "task" else text, module.__dict__)
    return found


def _tests(text: str, path: Path) -> Sequence[Mapping[str, Any]]:
    """Return the tests of task.yml: one mapping of arguments each."""
    found = _listed("tests", text, path)
    if not found:
        raise TaskError(f"{path / 'task.yml'}: has no tests")
    return found


def _listed(name: str, text: str, path: Path) -> Sequence[Mapping[str, Any]]:
    """Return a list of task.yml by its name; empty where there is none."""
    block = re.search(rf"^{name}:\s*\n((?:[ \t]*-.*\n?|[ \t]*#.*\n?|\s*\n)+)", text, re.MULTILINE)
    lines = re.findall(r"-\s*(\{.*\})", block[1]) if block else []
    try:
        found = [ast.literal_eval(_quoted(line)) for line in lines]
    except (ValueError, SyntaxError):
        raise TaskError(f"{path / 'task.yml'}: its {name} cannot be read") from None
    if not all(isinstance(one, dict) for one in found):
        raise TaskError(f"{path / 'task.yml'}: its {name} are no mappings")
    return found


def _quoted(line: str) -> str:
    """Return a mapping in YAML's short form as a Python dictionary."""
    line = re.sub(r"([{,]\s*)([A-Za-z_]\w*)\s*:", r'\1"\2":', line)
    return re.sub(
        r":\s*(true|false|null)\b", lambda found: {"true": ": True", "false": ": False"}.get(found[1], ": None"), line
    )
