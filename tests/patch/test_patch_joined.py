# mypy: disable-error-code="no-untyped-call"
# PyTorch types Tensor.backward and Function.apply not at all.
"""Fusions of patched models: residual with norm, projections of one input, feed-forward blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import CLASSES, SIZES, assert_same, batch, found, model_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
from tilesmith.ops.rope import rope
from tilesmith.patch import patch
from tilesmith.patch.gradients.projections import joined_operands, projections
from tilesmith.patch.parts.attention_module import PROJECTIONS, rotated_projections
from tilesmith.patch.parts.feed_forward import feed_forward
from tilesmith.patch.parts.norms import centred_norm, gemma_norm, one_plus, plain_norm
from tilesmith.patch.parts.residual import norm_and_input, norm_of_sum, sum_with_norm
from tilesmith.toolchain.interpreter import Launched, handing_over

LAYERS = SIZES["num_hidden_layers"]
HIDDEN = (3, 12, SIZES["hidden_size"])


class Counting(TorchDispatchMode):
    """Counts operators; additions only where they add hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        name = function.name().split("::")[1].split(".")[0]
        if name not in ("add", "add_") or tuple(arguments[0].shape) == HIDDEN:
            self.counts[name] += 1
        return function(*arguments, **(named or {}))


class Idle:
    """Runs no launch."""

    def launch(self, launched: Launched) -> None:
        pass

    def configuration(self, candidates: Sequence[Any], kernel: Any, arguments: Mapping[str, Any]) -> Any:
        return candidates[0]


def called_by_a_step(model: Any) -> Counter[str]:
    """Return the operators that a training step calls. Our kernels do not run, so results are undefined."""
    counting = Counting()
    with ts.use("interpret"), handing_over(Idle()), counting:
        model.train()(**batch(), use_cache=False).loss.backward()
    return counting.counts


@pytest.mark.parametrize("family", CLASSES)
def test_one_addition_of_hidden_states_per_layer_is_a_separate_pass(family: str) -> None:
    """Unpatched, there are seven: two residuals, their gradients, two for q, k and v, and one for gate and up."""
    theirs, ours = called_by_a_step(model_of(family)), called_by_a_step(patch(model_of(family)))
    assert theirs["add"] + theirs["add_"] >= 7 * LAYERS
    assert ours["add"] + ours["add_"] == LAYERS
    assert ours["addmm_"] == 3 * LAYERS
    assert ours["add_rms_norm_forward"] + ours["one_plus_add_rms_norm_forward"] == LAYERS
    norms = 4 if family in ("gemma2", "gemma3") else 2
    assert ours["add_rms_norm_backward"] + ours["one_plus_rms_norm_backward"] == norms * LAYERS


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3"])
def test_norms_of_a_layer_add_one_to_their_weights_without_a_launch(family: str) -> None:
    """The norm after the last layer has a tensor 1 + weight."""
    called = called_by_a_step(patch(model_of(family)))
    norms = 2 if family == "gemma" else 4
    assert called["one_plus_rms_norm_forward"] + called["one_plus_add_rms_norm_forward"] == norms * LAYERS


def test_gradient_of_a_transposed_weight_is_not_copied() -> None:
    """The parameter takes a gradient of its own layout as it is, and a copy of any other."""
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    layer, x = conv1d(5, 3), torch.randn(4, 3, requires_grad=True)
    counting = Counting()
    with ts.use("interpret"):
        (y,) = projections(x, layer)
        with counting:
            y.sum().backward()
    assert not counting.counts["clone"]
    assert not counting.counts["copy_"]
    torch.testing.assert_close(layer.weight.grad, x.detach().sum(0)[:, None].expand(3, 5))


@pytest.mark.parametrize("family", CLASSES)
def test_training_step_does_not_wait_for_the_gpu(family: str) -> None:
    counting, model = Counting(), patch(model_of(family))
    with counting:
        found(model, **batch())
    assert counting.counts["mm"]
    assert not counting.counts["_local_scalar_dense"]


def test_attention_gets_no_mask_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Tensor | None] = []

    def attention(*tensors: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        masks.append(mask)
        return torch.zeros_like(tensors[0])

    monkeypatch.setattr("tilesmith.patch.parts.attention_registry.attention", attention)
    patch(model_of("mistral"))(batch()["input_ids"])
    assert masks == [None] * LAYERS


def kept_sizes(family: str, **switches: bool) -> Counter[int]:
    """Return the sizes of tensors that are saved for the backward, each storage once."""
    kept: dict[int, int] = {}

    def keep(one: Tensor) -> Tensor:
        kept[one.untyped_storage().data_ptr()] = one.numel()
        return one

    model = patch(model_of(family), **switches).train()
    with ts.use("interpret"), torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        model(**{name: tensor[:1, :5] for name, tensor in batch().items()})
    return Counter(kept.values())


def test_feed_forward_block_saves_gate_and_up_only() -> None:
    wide = 5 * SIZES["intermediate_size"]
    assert kept_sizes("llama", mlp=False)[wide] >= 3 * LAYERS
    assert kept_sizes("llama")[wide] == 2 * LAYERS


class Norm(nn.Module):
    def __init__(self, columns: int, forward: Callable[..., Tensor] = plain_norm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns))
        self.variance_epsilon = 1e-6
        self.forward = self._tilesmith_forward = MethodType(forward, self)  # as `patch` sets both


def plain_norm_of(norm: Any, x: Tensor) -> Tensor:
    factor = 1.0 + norm.weight if norm.forward.__func__ is gemma_norm else norm.weight
    return F.rms_norm(x, x.shape[-1:], factor, norm.variance_epsilon)


class CentredNorm(nn.LayerNorm):
    def __init__(self, columns: int, bias: bool) -> None:
        super().__init__(columns, bias=bias)
        for parameter in self.parameters():
            nn.init.normal_(parameter)
        self.forward = self._tilesmith_forward = centred_norm.__get__(self)  # type: ignore[method-assign]  # as `patch` does


def plain_centred_norm_of(norm: CentredNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


class Block(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(6, 9, bias), nn.Linear(6, 9, bias)
        self.down_proj = nn.Linear(9, 6, bias)


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, size, bias) for size in (8, 4, 4)])
        self.q_norm, self.k_norm = Norm(4), Norm(4)

    def ours(self, x: Tensor, cos: Tensor, sin: Tensor, normed: bool) -> tuple[Tensor, ...]:
        x = x if x.ndim == 3 else x[None]
        tables = cos[: x.shape[1]], sin[: x.shape[1]]
        return rotated_projections(self, x, tuple(self.layers), (*x.shape[:2], -1, 4), *tables, normed)  # type: ignore[arg-type]  # three

    def apart(self, x: Tensor, cos: Tensor, sin: Tensor, normed: bool) -> tuple[Tensor, ...]:
        x = x if x.ndim == 3 else x[None]
        q, k, v = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in self.layers)
        if normed:
            q, k = plain_norm_of(self.q_norm, q), plain_norm_of(self.k_norm, k)
        return *rope.reference(q, k, cos[: x.shape[1]], sin[: x.shape[1]]), v


def summed_and_normed(norms: Any, residual: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
    total = residual + plain_norm_of(norms[0], branch)
    return plain_norm_of(norms[1], total), total


def joined_and_apart(bias: bool = True) -> dict[str, tuple[nn.Module, Callable[..., Any], Callable[..., Any]]]:
    """Return modules with two functions of x: our fused one, and one that calls the modules."""
    torch.manual_seed(0)
    norm, centred, block = Norm(6).double(), CentredNorm(6, bias).double(), Block(bias).double()
    norms = nn.ModuleList([Norm(6), Norm(6)]).double()
    gemma = nn.ModuleList([Norm(6, gemma_norm), Norm(6, gemma_norm)]).double()
    attention = Attention(bias).double()
    angles = torch.randn(5, 2).double()
    cos, sin = torch.cat((angles.cos(),) * 2, -1), torch.cat((angles.sin(),) * 2, -1)

    def called(x: Tensor) -> tuple[Tensor]:
        return (block.down_proj(F.silu(block.gate_proj(x)) * block.up_proj(x)),)

    return {
        "norm and input": (norm, lambda x: norm_and_input(norm, x), lambda x: (plain_norm_of(norm, x), x)),
        "norm of sum": (
            norm,
            lambda x: norm_of_sum(norm, x, x.sin()),
            lambda x: (plain_norm_of(norm, x + x.sin()), x + x.sin()),
        ),
        "norm of sum with a norm": (
            norms,
            lambda x: norm_of_sum(norms[1], x.cos(), x.sin(), norms[0]),
            lambda x: summed_and_normed(norms, x.cos(), x.sin()),
        ),
        "sum with norm": (
            norm,
            lambda x: (sum_with_norm(norm, x.cos(), x.sin()),),
            lambda x: (x.cos() + plain_norm_of(norm, x.sin()),),
        ),
        "gemma norm and input": (
            gemma[0],
            lambda x: norm_and_input(gemma[0], x),
            lambda x: (plain_norm_of(gemma[0], x), x),
        ),
        "gemma norm of sum with a norm": (
            gemma,
            lambda x: norm_of_sum(gemma[1], x.cos(), x.sin(), gemma[0]),
            lambda x: summed_and_normed(gemma, x.cos(), x.sin()),
        ),
        "rotated projections": (
            attention,
            lambda x: attention.ours(x, cos, sin, normed=False),
            lambda x: attention.apart(x, cos, sin, normed=False),
        ),
        "normed and rotated projections": (
            attention,
            lambda x: attention.ours(x, cos, sin, normed=True),
            lambda x: attention.apart(x, cos, sin, normed=True),
        ),
        "centred norm and input": (
            centred,
            lambda x: norm_and_input(centred, x),
            lambda x: (plain_centred_norm_of(centred, x), x),
        ),
        "projections": (
            block,
            lambda x: projections(x, block.gate_proj, block.up_proj),
            lambda x: (block.gate_proj(x), block.up_proj(x)),
        ),
        "feed forward": (block, lambda x: (feed_forward(block, x),), called),
    }


NAMES = tuple(joined_and_apart())


def gradients(function: Callable[..., Any], module: nn.Module, x: Tensor, used: slice = slice(None)) -> list[Any]:
    """Return the gradients of the used results, with different cotangents, for x and every trainable parameter."""
    module.zero_grad()
    x = x.detach().requires_grad_()
    outputs = function(x)[used]
    cotangents = [torch.linspace(-1, 1, one.numel(), dtype=one.dtype).view(one.shape) for one in outputs]
    torch.autograd.backward(outputs, cotangents)
    return [x.grad, *(None if one.grad is None else one.grad.clone() for one in module.parameters())]


@pytest.mark.parametrize("used", [slice(None), slice(0, 1), slice(-1, None)], ids=["all", "first", "last"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name", NAMES)
def test_fused_functions_have_the_gradients_of_the_modules(name: str, bias: bool, used: slice) -> None:
    module, ours, theirs = joined_and_apart(bias)[name]
    for x in (
        torch.randn(2, 5, 6).double(),
        torch.randn(6, 3).double().t(),
        torch.randn(5, 2, 6).double().transpose(0, 1),
    ):
        with ts.use("interpret"):
            mine = gradients(ours, module, x, used)
        torch.testing.assert_close(mine, gradients(theirs, module, x, used))


@pytest.mark.parametrize("name", NAMES)
def test_frozen_parameters_get_no_gradient(name: str) -> None:
    module, ours, theirs = joined_and_apart()[name]
    next(module.parameters()).requires_grad_(False)
    x = torch.randn(2, 5, 6).double()
    with ts.use("interpret"):
        mine = gradients(ours, module, x)
    torch.testing.assert_close(mine, gradients(theirs, module, x))
    assert mine[1] is None


@pytest.mark.parametrize("name", ["norm and input", "centred norm and input", "projections", "feed forward"])
def test_results_can_be_changed_in_place(name: str) -> None:
    """As Llama 4 adds to the result of its shared expert."""
    module, ours, theirs = joined_and_apart(bias=False)[name]
    x = torch.randn(2, 5, 6).double()

    def changed(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: (function(x)[0].mul_(3),)

    with ts.use("interpret"):
        mine = gradients(changed(ours), module, x)
    torch.testing.assert_close(mine, gradients(changed(theirs), module, x))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_can_be_differentiated_again(name: str) -> None:
    module, ours, theirs = joined_and_apart()[name]
    start = torch.randn(3, 6).double()

    def twice(function: Callable[..., Any]) -> list[Any]:
        module.zero_grad()
        x = start.clone().requires_grad_()
        (first,) = torch.autograd.grad([one.sin().sum() for one in function(x)], x, create_graph=True)
        first.square().sum().backward()
        return [x.grad, *(None if one.grad is None else one.grad.clone() for one in module.parameters())]

    with ts.use("interpret"):
        mine = twice(ours)
    torch.testing.assert_close(mine, twice(theirs))


def test_gemms_run_only_for_needed_gradients() -> None:
    block = Block(bias=False)
    block.up_proj.requires_grad_(False)
    x = torch.randn(4, 6, requires_grad=True)
    outputs = projections(x, block.gate_proj, block.up_proj)
    with Counting() as counting:
        torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
    assert counting.counts["mm"] + counting.counts["addmm_"] == 3


def test_autocast_projects_in_its_dtype() -> None:
    block = Block(bias=True)
    x = torch.randn(4, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = projections(x, block.gate_proj, block.up_proj)
        wanted = block.gate_proj(x), block.up_proj(x)
    assert all(torch.equal(one, other) for one, other in zip(outputs, wanted, strict=True))
    sum(one.sum() for one in outputs).backward()  # type: ignore[union-attr]
    assert x.grad is not None
    assert block.up_proj.weight.grad is not None
    assert x.grad.dtype == block.up_proj.weight.grad.dtype == torch.float32


def projected(monkeypatch: pytest.MonkeyPatch, family: str) -> list[int]:
    """Return the number of layers in each projection of the first attention module during a training step."""
    model, seen = patch(model_of(family)), []

    def recorded(x: Tensor, *layers: Any) -> Any:
        names = {id(layer): name for name, layer in model.model.layers[0].self_attn.named_children()}
        if all(id(layer) in names for layer in layers):
            seen.append([names[id(layer)] for layer in layers])
        return joined_operands(x, *layers)

    monkeypatch.setattr("tilesmith.patch.gradients.projections.joined_operands", recorded)
    found(model, **batch())
    return [len(names) for names in seen]


@pytest.mark.parametrize("family", CLASSES)
def test_attention_modules_use_our_projections(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    assert projected(monkeypatch, family) == [3, 1]


@pytest.mark.parametrize(("fusion", "layers"), [("output projection", [3]), ("qkv projections", [1])])
def test_each_projection_is_fused_without_the_other(
    monkeypatch: pytest.MonkeyPatch, fusion: str, layers: list[int]
) -> None:
    monkeypatch.setitem(PROJECTIONS, fusion, ({"self.no_such_proj": "nothing"},))
    assert projected(monkeypatch, "llama") == layers


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def with_adapter(model: Any) -> None:
    layer = model.model.layers[0]
    attention, block = layer.self_attn, layer.mlp
    for owner, name in ((attention, "k_proj"), (attention, "o_proj"), (block, "down_proj"), (block, "up_proj")):
        before = getattr(owner, name)
        doubling = Doubling(before.in_features, before.out_features, bias=before.bias is not None)
        doubling.load_state_dict(before.state_dict())
        setattr(owner, name, doubling)


def one_more(layer: nn.Module, inputs: Any, output: Any) -> Any:
    return output + 1 if isinstance(output, Tensor) else (output[0] + 1, *output[1:])  # before transformers 4.54


def with_hooks(model: Any) -> None:
    layer = model.model.layers[0]
    for module in (layer.self_attn.v_proj, layer.mlp.gate_proj, layer.input_layernorm, layer.post_attention_layernorm):
        module.register_forward_hook(lambda module, inputs, output: 2 * output)
    for module in (layer.mlp.up_proj, layer.self_attn.o_proj):
        module.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    model.model.layers[1].register_forward_hook(one_more)


@pytest.mark.parametrize("mode", ["auto", "interpret"])
@pytest.mark.parametrize("prepare", [with_adapter, with_hooks])
def test_adapters_and_hooks_are_called(prepare: Callable[[Any], None], mode: Any) -> None:
    plain, patched = model_of("llama"), model_of("llama")
    prepare(plain)
    prepare(patch(patched))
    inputs = {name: tensor[:2, :6] for name, tensor in batch().items()}
    with ts.use(mode):
        ours = found(patched, **inputs)
    assert_same(ours, found(plain, **inputs))
    assert abs(ours["loss"] - found(model_of("llama"), **inputs)["loss"]) > 1e-3  # the changes matter


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_on_kernels_gives_the_same_gradients(reentrant: bool) -> None:
    inputs = {name: tensor[:1, :5] for name, tensor in batch().items()}
    model = patch(model_of("llama", tie_word_embeddings=True))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with ts.use("interpret"):
        ours = found(model, **inputs)
    assert_same(ours, found(model_of("llama", tie_word_embeddings=True), **inputs))


def test_autocast_trains_the_same_through_our_kernels() -> None:
    inputs = {name: tensor[:1, :5] for name, tensor in batch().items()}
    with torch.autocast("cpu", torch.bfloat16):
        theirs = found(model_of("llama", tie_word_embeddings=True), **inputs)
        with ts.use("interpret"):
            ours = found(patch(model_of("llama", tie_word_embeddings=True)), **inputs)
    assert_same(ours, theirs, tolerance=0.03)


def test_hidden_states_between_layers_are_plain() -> None:
    plain, patched = model_of("llama").eval(), patch(model_of("llama")).eval()
    tokens = batch()["input_ids"]
    with ts.use("interpret"):
        ours = patched(tokens[:1, :6], output_hidden_states=True).hidden_states
    torch.testing.assert_close(ours, plain(tokens[:1, :6], output_hidden_states=True).hidden_states)


def test_one_plus_a_weight_is_exact_and_one_node() -> None:
    weight = nn.Parameter(torch.randn(64, dtype=torch.bfloat16))
    factor, gradient = one_plus(weight), torch.randn(64)
    assert torch.equal(factor, 1.0 + weight.float())
    assert factor.grad_fn is not None
    assert any("AccumulateGrad" in node.name() for node, _ in factor.grad_fn.next_functions if node is not None)
    factor.backward(gradient)
    assert weight.grad is not None
    assert torch.equal(weight.grad, gradient.to(torch.bfloat16))
