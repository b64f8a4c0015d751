"""A drawn case as something to time: the operator's spec with tensors, cost and providers of this case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.bench.measuring.timed_calls import Function
from tilesmith.lab.bench.survey.drawing import DRAW, Drawn
from tilesmith.spec import Case, Cost, Inputs, Layout, Spec, SpecError, Work

SLOW_TO_START = ("compile", "quack", "flex", "flash_attn_4")
"""Rivals that compile for seconds at every new size."""

Change = Callable[[Inputs], Inputs]
Part = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class Subject:
    """One drawn case. `exact` computes the operator in higher precision, `plain` in its own dtype, both by PyTorch.

    `part` takes what is compared of a tensor. It has the name of an argument, or the name of a cotangent for an output.
    It selects batches and heads that do not depend on the others, where the whole would take too long in higher
    precision.
    """

    spec: Spec
    case: Case
    dtype: torch.dtype
    exact: Function
    plain: Function
    part: Part = field(default=lambda name, tensor: tensor)


def title(drawn: Mapping[str, Any]) -> str:
    """Return the name of a case: `8191×4097 bf16`, `m=777 n=1023 k=2047 NT bf16`."""
    short = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    sizes = {name: value for name, value in drawn.items() if name != "dtype"}
    if list(sizes) == ["rows", "columns"]:
        words = [f"{drawn['rows']}×{drawn['columns']}"]
    else:
        words = [_word(name, value) for name, value in sizes.items() if value is not False]
    return " ".join([*words, short.get(drawn["dtype"], drawn["dtype"])])


def _word(name: str, value: object) -> str:
    if value is True:
        return name
    return value if isinstance(value, str) else f"{name}={value}"


WRONG_IN_PYTORCH = frozenset({"avg_pool2d"})
"""Operators of which PyTorch's own result is wrong for some layouts, so that the spec's definition is the reference:
the gradient of avg_pool2d on a GPU for images with channels last."""


def can_be_drawn(spec: Spec) -> bool:
    """Return whether the survey has cases for this spec: by name, or because its cases have rows and columns."""
    return spec.name in DRAW or all(set(case.sizes) == {"rows", "cols"} for case in spec.cases)


def subject(spec: Spec, drawn: Drawn) -> Subject:
    """Return the drawn case of this spec. Raises SpecError where the spec has no such case."""
    if not can_be_drawn(spec):
        raise SpecError(f"{spec.name} has no distribution of cases; {', '.join(DRAW)} have one")
    dtype = getattr(torch, drawn["dtype"])
    plain = spec.reference if spec.name in WRONG_IN_PYTORCH else spec.rivals.get("torch", spec.reference)
    made = _SUBJECTS.get(spec.name, _rows)(spec, drawn)
    return made if isinstance(made, Subject) else Subject(made, made.cases[0], dtype, plain, plain)


def _on(spec: Spec, case: Case, change: Change | None = None) -> Spec:
    """Return the spec with this one case; `change` alters the arguments that the spec makes for it."""
    if change is None:
        return replace(spec, cases=[case])

    def inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> Inputs:
        return change(spec.inputs(case, dtype, device, layout))

    return replace(spec, cases=[case], make_inputs=inputs)


def _rows(spec: Spec, drawn: Drawn) -> Spec:
    return _on(spec, Case("drawn", rows=drawn["rows"], cols=drawn["columns"]))


def _cross_entropy(spec: Spec, drawn: Drawn) -> Spec:
    return _on(spec, Case("drawn", rows=drawn["rows"], cols=drawn["columns"], ignored=0))


def _transpose(spec: Spec, drawn: Drawn) -> Spec:
    return _on(spec, Case("drawn", batch=1, rows=drawn["rows"], cols=drawn["columns"]))


def _matmul(spec: Spec, drawn: Drawn) -> Spec:
    def laid_out(inputs: Inputs) -> Inputs:
        for name, letter in zip("ab", drawn["layout"], strict=True):
            if letter == "T":
                inputs[name] = inputs[name].t().contiguous().t()
        return inputs

    return _on(spec, Case("drawn", m=drawn["m"], n=drawn["n"], k=drawn["k"]), laid_out)


def _attention(spec: Spec, drawn: Drawn) -> Subject:
    group = drawn["heads"] // drawn["key_heads"]
    # The spec's cost knows by these names whether an attention is causal.
    case = Case(
        "causal-64" if drawn["causal"] else "full-64", batch=drawn["batch"], key_heads=drawn["key_heads"], group=group,
        queries=drawn["queries"], keys=drawn["keys"], head=drawn["head_size"],
    )  # fmt: skip
    plain = spec.rivals["torch"]

    def exact(q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> Any:
        # PyTorch has no fused kernel for grouped heads in float32, and all scores of one head may not fit in memory.
        repeated = (one.repeat_interleave(group, dim=1) for one in (k, v))
        return plain(q, *repeated, *options, **named)

    def part(name: str, tensor: Tensor) -> Tensor:
        """Return the last key head of the last batch, and the query heads that use it."""
        return tensor[-1:, -1:] if name in ("k", "v") else tensor[-1:, -group:]

    return Subject(_on(spec, case), case, getattr(torch, drawn["dtype"]), exact, plain, part)


def _triangle_multiply(spec: Spec, drawn: Drawn) -> Spec:
    channels = drawn["channels"]
    # By this name the spec leaves out the biases, as cuEquivariance needs it.
    case = Case("n256", batch=drawn["batch"], residues=drawn["residues"], channels=channels, hidden=channels)
    return _on(spec, case, lambda inputs: {**inputs, "direction": drawn["direction"]})


def _triangle_attention(spec: Spec, drawn: Drawn) -> Spec:
    residues = drawn["residues"]
    sizes = {"head": drawn["head_size"], "batch": drawn["batch"], "heads": drawn["heads"]}
    return _on(spec, Case("drawn" if drawn["starting"] else "ending", rows=residues, columns=residues, **sizes))


def _alignment_attention(spec: Spec, drawn: Drawn) -> Spec:
    sizes = {"rows": drawn["sequences"], "columns": drawn["residues"], "head": drawn["head_size"]}
    return _on(spec, Case("drawn", **sizes, batch=1, heads=drawn["heads"]))


def _rope(spec: Spec, drawn: Drawn) -> Spec:
    sizes = {"q_heads": drawn["heads"], "k_heads": drawn["key_heads"], "pairs": drawn["head_size"] // 2, "rest": 0}
    return _on(spec, Case("drawn", batch=drawn["batch"], positions=drawn["positions"], **sizes))


def _linear_cross_entropy(spec: Spec, drawn: Drawn) -> Spec:
    sizes = {name: drawn[name] for name in ("rows", "features", "classes")}
    return _on(spec, Case("drawn", **sizes, ignored=0))


def _same_names(spec: Spec, drawn: Drawn) -> Spec:
    sizes = {name: size for name, size in drawn.items() if name != "dtype"}
    return _on(spec, Case("drawn", **{"batch": 1, **sizes}))


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _pooling(spec: Spec, drawn: Drawn) -> Spec:
    sizes = {"height": drawn["side"], "width": drawn["side"]}
    # By this name the spec takes the window of a residual network: 3×3, stride 2, padding 1.
    case = Case("batch", batch=drawn["batch"], channels=drawn["channels"], **sizes)
    if not drawn["channels_last"]:
        return _on(spec, case)
    return _on(spec, case, lambda inputs: {**inputs, "x": _channels_last(inputs["x"])})


def _conv2d(spec: Spec, drawn: Drawn) -> Spec:
    kernel, stride, side = drawn["kernel"], drawn["stride"], drawn["side"]
    images = (drawn["batch"], drawn["channels"], side, side)
    weights = (drawn["filters"], drawn["channels"], kernel, kernel)
    case = Case("drawn", batch=drawn["batch"], channels=drawn["channels"], outputs=drawn["filters"], side=side)

    def inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> Inputs:
        scale = math.prod(weights[1:]) ** -0.5
        made = {
            "x": torch.randn(images, dtype=dtype, device=device),
            "weight": torch.randn(weights, dtype=dtype, device=device) * scale,
        }
        if drawn["channels_last"]:
            made = {name: _channels_last(one) for name, one in made.items()}
        bias = torch.randn(drawn["filters"], dtype=dtype, device=device)
        return {**made, "bias": bias, "stride": stride, "padding": kernel // 2, "dilation": 1, "groups": 1}

    def cost(case: Case, dtype: torch.dtype) -> Cost:
        out = (side + 2 * (kernel // 2) - kernel) // stride + 1
        results = drawn["batch"] * drawn["filters"] * out * out
        moved = (math.prod(images) + math.prod(weights) + results) * dtype.itemsize
        flops = 2 * results * math.prod(weights[1:])
        # The backward reads x, weight and dy, and writes dx, dweight and dbias.
        return Cost(Work(moved, flops), Work(2 * moved - results * dtype.itemsize, 2 * flops))

    return replace(spec, cases=[case], make_inputs=inputs, cost=cost)


_SUBJECTS: dict[str, Callable[[Spec, Drawn], Spec | Subject]] = {
    "cross_entropy": _cross_entropy,
    "transpose": _transpose,
    "matmul": _matmul,
    "attention": _attention,
    "triangle_multiply": _triangle_multiply,
    "triangle_attention": _triangle_attention,
    "msa_row_attention": _alignment_attention,
    "msa_column_attention": _alignment_attention,
    "rope": _rope,
    "linear_cross_entropy": _linear_cross_entropy,
    "max_pool2d": _pooling,
    "avg_pool2d": _pooling,
    "conv2d": _conv2d,
    **dict.fromkeys(("outer_product_mean", "edge_norm", "transition"), _same_names),
}
