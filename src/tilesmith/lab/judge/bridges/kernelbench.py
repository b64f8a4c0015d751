"""KernelBench's problems: a file with `Model`, `get_inputs` and `get_init_inputs`; candidates define `ModelNew`.

A problem has one size, often too large for the interpreter. Then the module's integers that set the size, alone or in
tuples, are halved until the inputs fit, and values that follow from them are computed again. The candidate's module
gets the weights of the problem's, and in replays other weights.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.judge.bridges.trusted_source import load
from tilesmith.lab.judge.task import LARGEST_CASE_BYTES, LARGEST_TIMED_BYTES, Rules, Task, TaskError, seeded
from tilesmith.spec import Case, Layout, Spec, described

NAMES = ("Model", "get_inputs", "get_init_inputs")
SMALLEST_SIZE = 4
_STEPS = 64
_ARITHMETIC = (
    ast.Constant,
    ast.Name,
    ast.BinOp,
    ast.UnaryOp,
    ast.Tuple,
    ast.List,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
)
_ROUNDINGS = 4  # a problem is a chain of operators, each of which rounds


def is_problem(text: str) -> bool:
    """Whether a file's text has the parts of a problem."""
    return "class Model(" in text and "def get_inputs(" in text


def task_of(path: Path, rules: Rules | None = None) -> Task:
    """Return the task of a problem file, and with it the same problem at the size to time. Raises TaskError."""
    small = _task_of(path, rules, LARGEST_CASE_BYTES)
    if not torch.cuda.is_available():
        return small
    return replace(small, timed=_task_of(path, rules, LARGEST_TIMED_BYTES // 2))  # as many bytes again for results


def _task_of(path: Path, rules: Rules | None, most_bytes: int) -> Task:
    module = load(path)
    missing = [name for name in NAMES if not hasattr(module, name)]
    if missing:
        raise TaskError(f"{path}: defines no {' and no '.join(missing)}")
    try:
        sizes = _small_sizes(module, most_bytes)
        with _sizes_set(module, sizes):
            init = list(module.get_init_inputs())
            model = _model(module, init, 0)
            count = len(_flat(module.get_inputs()))
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"{path}: fails: {described(error, str(path))}") from None
    names = [f"input_{number}" for number in range(count)]

    def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
        with _sizes_set(module, case.sizes):
            return dict(zip(names, _flat(module.get_inputs()), strict=True))

    def reference(parameters: Mapping[str, Tensor] | None = None, **inputs: Any) -> Any:
        values = dict(parameters or {})
        return torch.func.functional_call(model, values, tuple(inputs.values()))

    def parameters(seed: int) -> dict[str, Tensor]:
        with _sizes_set(module, sizes):
            made = _model(module, init, 0)
        values = {name: one.detach() for name, one in [*made.named_parameters(), *made.named_buffers()]}
        return values if seed == 0 else _redrawn(values, seed)

    spec = Spec(
        name=path.stem, op=reference, reference=reference, cases=[Case("given", **sizes)], make_inputs=make_inputs,
        dtypes=(torch.float32,), differentiable=False, roundings=_ROUNDINGS,
    )  # fmt: skip
    return Task(
        spec=spec, rules=replace(rules or Rules(torch="any"), gradients="none"), given=spec.cases, hidden=(),
        dtypes=spec.dtypes, function_names=("ModelNew",), style="positional", init=init, parameters=parameters,
    )  # fmt: skip


def _model(module: ModuleType, init: list[Any], seed: int) -> torch.nn.Module:
    with seeded(seed):
        made: torch.nn.Module = module.Model(*init)
        return made


def _redrawn(values: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Return other weights of the same size: each tensor's values in another order, and scaled a little."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, one in values.items():
        if one.is_floating_point() and one.numel():
            order = torch.randperm(one.numel(), generator=generator)
            factor = 0.75 + 0.5 * torch.rand((), generator=generator)
            made[name] = (one.flatten()[order] * factor).view(one.shape).to(one.dtype)
        else:
            made[name] = one.clone()
    return made


def _small_sizes(module: ModuleType, most_bytes: int) -> dict[str, int]:
    """Return the module's sizes, halved in turn until inputs and weights have at most these bytes."""
    sizes = _sizes_of(module)
    for _ in range(_STEPS):
        if _input_bytes(module, sizes) <= most_bytes:
            return sizes
        for name in sorted(sizes, key=lambda one: -sizes[one]):
            smaller = {**sizes, name: sizes[name] // 2}
            if sizes[name] // 2 >= SMALLEST_SIZE and _works(module, smaller):
                sizes = smaller
                break
        else:
            break
    if _input_bytes(module, sizes) > max(most_bytes, 64 * LARGEST_CASE_BYTES):
        raise TaskError(f"{module.__file__}: the problem is too large for the interpreter; judge it on a GPU")
    return sizes


def _works(module: ModuleType, sizes: Mapping[str, int]) -> bool:
    """Return whether the problem accepts these sizes, without computing them."""
    try:
        with _sizes_set(module, sizes), torch.device("meta"):
            module.Model(*module.get_init_inputs())(*module.get_inputs())
    except Exception:
        return False
    return True


def _input_bytes(module: ModuleType, sizes: Mapping[str, int]) -> int:
    with _sizes_set(module, sizes), torch.device("meta"):
        model = module.Model(*module.get_init_inputs())
        tensors = [*_flat(module.get_inputs()), *model.parameters()]
    return sum(one.nbytes for one in tensors if isinstance(one, Tensor))


def _sizes_of(module: ModuleType) -> dict[str, int]:
    """Return the integers that a problem sets, also inside tuples: `shape = (8, 32)` has the sizes shape_0, shape_1."""
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in _derived(module):
            continue
        for part, one in {name: value, **_parts(name, value)}.items():
            if type(one) is int:
                found[part] = one
    return found


def _parts(name: str, value: Any) -> dict[str, Any]:
    return {f"{name}_{place}": one for place, one in enumerate(value)} if isinstance(value, list | tuple) else {}


@cache
def _derived(module: ModuleType) -> dict[str, Any]:
    """Return the code of the module's values that follow from others, such as `shape = (rows, 2 * cols)`."""
    found: dict[str, Any] = {}
    names: set[str] = set()
    for node in ast.parse(Path(str(module.__file__)).read_bytes()).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            parts = list(ast.walk(node.value))
            used = {one.id for one in parts if isinstance(one, ast.Name)}
            if all(isinstance(one, _ARITHMETIC) for one in parts):
                if used and used <= names:
                    found[node.targets[0].id] = compile(ast.Expression(node.value), str(module.__file__), "eval")
                names.add(node.targets[0].id)
    return found


@contextmanager
def _sizes_set(module: ModuleType, sizes: Mapping[str, int]) -> Iterator[None]:
    before = dict(vars(module))
    for name, value in before.items():
        parts = _parts(name, value)
        if name in sizes:
            setattr(module, name, sizes[name])
        elif any(part in sizes for part in parts):
            setattr(module, name, type(value)(sizes.get(part, one) for part, one in parts.items()))
    for name, code in _derived(module).items():
        setattr(module, name, eval(code, vars(module)))
    try:
        yield
    finally:
        vars(module).update(before)


def _flat(inputs: Any) -> list[Any]:
    return list(inputs) if isinstance(inputs, list | tuple) else [inputs]
