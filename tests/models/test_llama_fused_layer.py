"""The fused layer of v3: the results of the composed layer, with few host calls."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, grad
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
from tilesmith.models import llama
from tilesmith.models.llama import Config, Llama
from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan

SMALL = Config(vocab_size=11, hidden_dim=16, num_layers=1, num_heads=4, num_kv_heads=2, ffn_dim=24, seq_len=5)
V3 = llama.version("v3").parts
COMPOSED = replace(V3, layer=None)
NODE = "_LayerBackward"


def made(parts: llama.Parts = V3, config: Config = SMALL, dtype: torch.dtype = torch.float32) -> Llama:
    """Return a model with weights so large that every part matters, and with norms other than one."""
    model = Llama(config, parts)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
            if parameter.dim() == 1:
                parameter.add_(1)
    return model.to(dtype)


def batch(config: Config = SMALL) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.vocab_size, (2, config.seq_len + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def gradients(model: Llama) -> dict[str, Tensor]:
    model(*batch(model.config)).backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """Return the gradients of a model, computed by our kernels."""
    with ts.use("interpret"):
        return gradients(made())


def nodes(result: Tensor) -> int:
    """Return the number of layers that are one autograd node in the graph of a result."""
    seen, waiting = set(), [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return sum(type(node).__name__ == NODE for node in seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_as_exact_as_pytorchs(dtype: torch.dtype) -> None:
    v2 = llama.version("v2").parts
    truth, theirs = gradients(made(v2, dtype=torch.float64)), gradients(made(v2, dtype=dtype))
    with ts.use("interpret"):
        ours = gradients(made(dtype=dtype))
    assert ours.keys() == truth.keys()
    for name, expected in truth.items():
        error, allowed = ((found[name] - expected).abs().max() for found in (ours, theirs))
        # Two random errors of the same size often differ by a factor of two.
        assert error <= 3 * allowed + torch.finfo(dtype).eps * expected.abs().max(), name


def test_fused_layer_matches_the_composed_layer() -> None:
    with ts.use("interpret"):
        whole, composed = gradients(made()), gradients(made(COMPOSED))
        logits = made()(batch()[0]), made(COMPOSED)(batch()[0])
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-6, atol=1e-7)
    for name, expected in composed.items():
        torch.testing.assert_close(whole[name], expected, rtol=1e-5, atol=1e-7, msg=name)


def test_branch_is_added_and_gradients_of_any_layout_are_taken() -> None:
    layers = [made(parts).layers[0] for parts in (V3, COMPOSED)]
    model, found = made(), []
    for layer in layers:
        stream, branch = (torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(n)) for n in (3, 4))
        inputs = [one.transpose(1, 2).requires_grad_() for one in (stream, branch)]
        with ts.use("interpret"):
            outputs = layer(*inputs, model.cos, model.sin)
            total = sum(one for one in outputs if one is not None)
            found.append([total, *torch.autograd.grad(total.sum(), [*inputs, *layer.parameters()])])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_result_may_be_changed_in_place() -> None:
    model = made()
    with ts.use("interpret"):
        total, _ = model.layers[0](torch.randn(1, 5, 16), None, model.cos, model.sin)
        total *= 2
        total.sum().backward()
    assert model.layers[0].qkv.grad is not None


@pytest.mark.parametrize(
    "frozen",
    ["embedding", "attention_norm", "layers.0.qkv", "output", "feed_forward_norm", "gate_up", "down", "layers"],
)
def test_frozen_parameters_get_no_gradient(frozen: str, expected: dict[str, Tensor]) -> None:
    model = made()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    with ts.use("interpret"):
        found = gradients(model)
    assert found.keys() == {name for name in expected if frozen not in name}
    for name, one in found.items():
        torch.testing.assert_close(one, expected[name], rtol=1e-6, atol=1e-7, msg=name)


def test_nothing_is_saved_without_gradients() -> None:
    model, (tokens, _) = made(), batch()
    with ts.use("interpret"):
        expected = model(tokens)
        with torch.no_grad():
            found = model(tokens)
    assert nodes(expected) == 1
    assert found.grad_fn is None
    assert torch.equal(found, expected)


def kept_bytes(model: Llama) -> int:
    """Return the bytes that the graph saves, each storage once, without parameters and tables."""
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(*batch(model.config))
    assert loss.requires_grad
    return sum(storage.nbytes() for address, storage in kept.items() if address not in own)


def test_saves_no_more_than_the_composed_layer() -> None:
    with ts.use("interpret"):
        assert kept_bytes(made()) <= kept_bytes(made(COMPOSED))


def test_second_derivatives_need_pytorch(expected: dict[str, Tensor]) -> None:
    model = made()
    parameters = list(model.parameters())
    with ts.use("interpret"):
        first = torch.autograd.grad(model(*batch()), parameters, create_graph=True)
        for found, one in zip(first, expected.values(), strict=True):
            torch.testing.assert_close(found, one, rtol=1e-5, atol=1e-7)
        with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
            torch.autograd.grad(first[2].pow(2).sum(), parameters)


def test_second_derivative_of_one_layer_raises() -> None:
    model = made()
    stream = torch.randn(1, 5, 16, requires_grad=True)
    with ts.use("interpret"):
        total, _ = model.layers[0](stream, None, model.cos, model.sin)
        (first,) = torch.autograd.grad(total.sum(), [stream], create_graph=True)
        with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
            torch.autograd.grad(first.sum(), [stream])


@pytest.mark.parametrize("mode", ["auto", "torch"])
def test_pytorch_modes_use_the_composed_layer(mode: Any) -> None:
    with ts.use(mode):
        assert nodes(made()(*batch())) == 0


def test_autocast_uses_the_composed_layer() -> None:
    with ts.use("interpret"), torch.autocast("cpu", torch.bfloat16):
        whole, composed = made()(*batch()), made(COMPOSED)(*batch())
    assert nodes(whole) == 0
    assert torch.equal(whole, composed)


def test_function_transforms_use_the_composed_layer(expected: dict[str, Tensor]) -> None:
    model = made()

    def loss(parameters: dict[str, Tensor]) -> Any:
        return functional_call(model, parameters, batch())

    with ts.use("interpret"):
        found = grad(loss)({name: one.detach() for name, one in model.named_parameters()})
    for name, one in expected.items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6, msg=name)


class Heard(TorchDispatchMode):
    """Records the operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.names.add(str(function))
        return function(*arguments, **(named or {}))


def test_dispatch_mode_sees_every_operator() -> None:
    with ts.use("interpret"), Heard() as heard:
        assert nodes(made()(*batch())) == 0
    assert {"tilesmith.attention_forward.default", "tilesmith.swiglu_forward.default"} <= heard.names


def test_dispatch_mode_around_backward_sees_every_operator(expected: dict[str, Tensor]) -> None:
    model = made()
    with ts.use("interpret"):
        loss = model(*batch())
        assert nodes(loss) == 1
        with Heard() as heard:
            loss.backward()
    assert {"tilesmith.attention_backward.default", "tilesmith.swiglu_backward.default"} <= heard.names
    for name, one in model.named_parameters():
        torch.testing.assert_close(one.grad, expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_fused_layer_compiles_as_one_graph() -> None:
    model: Any = made()
    expected = model(*batch())
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = compiled(*batch())
    torch.testing.assert_close(found, expected)
    found.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Labelled(Tensor):
    """A tensor subclass that only PyTorch can handle."""


@pytest.mark.parametrize("name", ["qkv", "attention_norm"])
def test_tensor_subclasses_use_pytorch(name: str) -> None:
    model = made()
    weights: dict[str, Tensor] = {f"layers.0.{name}": getattr(model.layers[0], name).detach().as_subclass(Labelled)}
    with ts.use("interpret"):
        found = functional_call(model, weights, batch())
        assert nodes(found) == 0
        torch.testing.assert_close(found.as_subclass(Tensor), model(*batch()))


def test_rejects_more_tokens_than_positions() -> None:
    tokens = torch.zeros(1, SMALL.seq_len + 1, dtype=torch.int64)
    with ts.use("interpret"), pytest.raises(ValueError, match="cos has shape"):
        made()(tokens)


def test_rejects_norm_of_another_length() -> None:
    model = made()
    model.layers[0].attention_norm = torch.nn.Parameter(torch.ones(12))
    with ts.use("interpret"), pytest.raises(ValueError, match="weight has 12 elements"):
        model(*batch())


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Forget the cached blocks, so that later tests decide again."""
    yield
    dispatch.forget()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("operator", ["rms_norm", "rope", "attention", "swiglu"])
def test_pytorch_computes_where_it_was_measured_faster(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def prefers_torch(device: torch.device, name: str, sizes: str, *, training: bool) -> bool:
        return name == operator

    model, inputs = made().to("meta"), [one.to("meta") for one in batch()]
    assert nodes(model(*inputs)) == 1
    monkeypatch.setattr(tuning, "prefers_torch", prefers_torch)
    dispatch.forget()
    assert nodes(model(*inputs)) == 0
    with ts.use("triton"):
        assert nodes(model(*inputs)) == 1


def test_unsupported_heads_use_the_composed_layer() -> None:
    """Heads of more than 64 columns in exact float32."""
    wide, inputs = replace(SMALL, hidden_dim=256, num_heads=2, num_kv_heads=1), [one.to("meta") for one in batch()]
    assert nodes(made(config=wide).to("meta")(*inputs)) == 0
    assert nodes(made(config=wide, dtype=torch.bfloat16).to("meta")(*inputs)) == 1
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert nodes(made(config=wide).to("meta")(*inputs)) == 1
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layer_is_one_node_on_a_gpu(dtype: torch.dtype) -> None:
    config = Config(num_layers=2)
    model = made(config=config, dtype=dtype).cuda()
    assert nodes(model(*(one.cuda() for one in batch(config)))) == 2


def per_layer(count: Callable[[Llama], int], parts: llama.Parts = V3) -> float:
    """Return by how much one more layer raises a count."""
    few, many = (count(made(parts, replace(SMALL, num_layers=layers))) for layers in (1, 3))
    return (many - few) / 2


def launches(model: Llama) -> int:
    with recorded_plans() as plans:
        model.to("meta")(*(one.to("meta") for one in batch())).backward()
    return sum(len(plan.launches) for plan in plans)


def test_fused_layer_launches_the_same_kernels() -> None:
    found = per_layer(launches)
    assert found == per_layer(launches, COMPOSED)
    assert found <= 13, "two norms, rotation, attention and gate; norms have two more in the backward, shared keys one"


@pytest.mark.parametrize("frozen", ["attention_norm", "feed_forward_norm"])
def test_gradient_of_frozen_norm_is_not_launched(frozen: str) -> None:
    model = made()
    getattr(model.layers[0], frozen).requires_grad_(False)
    assert launches(model) == launches(made()) - 1


@pytest.mark.parametrize("frozen", ["qkv", "output", "gate_up", "down"])
def test_gradient_of_frozen_matrix_is_not_computed(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply, shapes = torch.mm, []

    def mm(a: Tensor, b: Tensor) -> Tensor:
        product = multiply(a, b)
        shapes.append(product.shape)
        return product

    monkeypatch.setattr(torch, "mm", mm)
    model = made().to("meta")
    weight = getattr(model.layers[0], frozen).requires_grad_(False)
    model(*(one.to("meta") for one in batch())).backward()
    assert len(shapes) == 4 + 3, "one for the gradient of every input, and of every weight but one"
    assert weight.shape not in shapes


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace kernels by no-ops, so that only the host's work is left."""
    monkeypatch.setattr(Plan, "_interpret", lambda plan, tensors: None)
    gc.collect()
    gc.disable()  # finalizers of other tests' objects would be counted
    yield
    gc.enable()


def calls(model: Llama) -> int:
    """Return the number of function calls in a repeated step, Python and C functions."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    for _ in range(2):
        model(*batch()).backward()
    sys.setprofile(count)
    try:
        model(*batch()).backward()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.usefixtures("unlaunched")
def test_host_makes_few_calls_per_layer() -> None:
    with ts.use("interpret"):
        found = per_layer(calls)
    assert found <= 300, "composed of operators it is twice as many"
