# mypy: disable-error-code="no-untyped-call"
# PyTorch does not annotate its rarer functions and base classes.
"""Operators inside torch.compile: one graph, the same results, no unnecessary compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from differentiation import assert_same, forward_and_backward, forwards_of, leaves_of, tensors_of
from representatives import REPRESENTATIVES_FIRST
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.operator import Operator
from tilesmith.spec import Case, Inputs, Spec, is_differentiable


@pytest.fixture(autouse=True)
def compiled_afresh(interpreted_once: None) -> Iterator[None]:
    torch._dynamo.reset()
    with ts.use("interpret"):
        yield
    torch._dynamo.reset()


class Counting:
    """A backend of torch.compile that runs graphs unchanged and records calls of our operators."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []
        self.backend = aot_autograd(
            fw_compiler=self._keep, bw_compiler=lambda graph, examples: make_boxed_func(graph.forward)
        )

    def _keep(self, graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        self.graphs.append([str(node.target) for node in graph.graph.nodes if "tilesmith" in str(node.target)])
        return make_boxed_func(graph.forward)


@REPRESENTATIVES_FIRST
def test_compiles_to_one_graph_of_our_kernels_until_the_mode_changes(
    operator: Operator[..., Any], inputs: Inputs
) -> None:
    """The operator stands between other operations, and is recomputed in the backward."""

    def block(call: Callable[..., Any], arguments: Inputs) -> list[Tensor]:
        doubled = {name: value * 2 if is_differentiable(value) else value for name, value in arguments.items()}
        return [torch.tanh(output) for output in tensors_of(call(**doubled))]

    def checkpointed(**arguments: Any) -> list[Tensor]:
        return block(partial(torch.utils.checkpoint.checkpoint, operator, use_reentrant=False), arguments)

    right = forward_and_backward(lambda **arguments: block(operator, arguments), inputs)
    assert_same(forward_and_backward(checkpointed, inputs), right)
    counting = Counting()
    compiled = torch.compile(checkpointed, fullgraph=True, backend=counting.backend)
    assert_same(forward_and_backward(compiled, inputs), right)
    assert len(counting.graphs) == 1
    assert any(one.name in call for one in forwards_of(operator) for call in counting.graphs[0])
    with ts.use("torch"):
        compiled(**leaves_of(inputs))  # the same look, in another mode
    assert counting.graphs[1:] == [[]]


@REPRESENTATIVES_FIRST
def test_another_size_of_a_dynamic_dimension_compiles_nothing_more(spec: Spec, small_case: Case) -> None:
    counting = Counting()
    compiled = torch.compile(spec.op, fullgraph=True, dynamic=True, backend=counting.backend)
    for more in (1, 2):  # PyTorch compiles sizes of 0 and 1 apart
        case = small_case.with_sizes(**{name: size + more for name, size in small_case.sizes.items()})
        inputs = spec.inputs(case, torch.float32, "cpu")
        found = forward_and_backward(compiled, inputs)
    assert_same(found, forward_and_backward(spec.op, inputs))
    assert len(counting.graphs) == 1


@pytest.mark.slow
def test_sizes_marked_dynamic_by_pytorch_itself_cost_one_more_compilation(spec: Spec, ordinary_case: Case) -> None:
    counting = Counting()
    compiled = torch.compile(spec.op, fullgraph=True, backend=counting.backend)
    for more in (0, 1, 2):
        case = ordinary_case.with_sizes(**{name: size + more for name, size in ordinary_case.sizes.items()})
        forward_and_backward(compiled, spec.inputs(case, torch.float32, "cpu"))
    assert len(counting.graphs) <= 2


@pytest.mark.parametrize(
    "spec", [SPECS["silu"], SPECS["attention"], SPECS["triangle_multiply"]], ids=lambda one: one.name
)
def test_bad_input_is_refused_inside_a_compiled_function_too(spec: Spec, inputs: Inputs) -> None:
    """Operators of one, several and many arguments; `TestBadInput` covers every operator."""
    compiled = torch.compile(spec.op, fullgraph=False, backend="eager")
    whole_numbers = {
        name: value.long() if isinstance(value, Tensor) else value for name, value in leaves_of(inputs).items()
    }
    with pytest.raises(TypeError, match=f"{spec.name}: .* has dtype int64"):
        compiled(**whole_numbers)
