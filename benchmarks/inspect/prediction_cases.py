"""Calls of other libraries' kernels at the sizes of real models, for `prediction.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ROWS, COLUMNS = 8192, 4096

Call = Callable[[], Any]
CASES: dict[str, Callable[[], Call]] = {}


def case(maker: Callable[[], Call]) -> Callable[[], Call]:
    """Register a function that makes its inputs and returns the call to predict or measure."""
    CASES[maker.__name__] = maker
    return maker


def bare(*packages: str, **names: Any) -> None:
    """Make empty packages whose modules can be imported. `names` are attributes of the last one."""
    for package in packages:
        folders = [Path(folder, *package.split(".")) for folder in sys.path]
        module = ModuleType(package)
        module.__path__ = [str(folder) for folder in folders if folder.is_dir()]
        sys.modules[package] = module
    for name, value in names.items():
        setattr(sys.modules[packages[-1]], name, value)


def normal(*shape: int, grad: bool = False, dtype: str = "bfloat16") -> Any:
    import torch

    # Random numbers of this size take seconds on a CPU; times do not depend on the values.
    return torch.full(shape, 0.5, device="cuda", dtype=getattr(torch, dtype)).requires_grad_(grad)


def both_ways(forward: Callable[[], Any]) -> Call:
    """Return a call that runs forward and backward."""

    def run() -> None:
        result = forward()
        result = result[0] if isinstance(result, tuple) else result
        result.backward(normal(*result.shape, dtype=str(result.dtype).rpartition(".")[2]))

    return run


def liger(module: str, function: str) -> Any:
    return getattr(__import__(f"liger_kernel.ops.{module}", fromlist=[function]), function)


def _liger_rows(module: str, function: str, *more: Any, inputs: int = 1, weights: int = 0) -> Call:
    apply = liger(module, function).apply
    rows = [normal(ROWS, COLUMNS, grad=True) for _ in range(inputs)]
    columns = [normal(COLUMNS, grad=True) for _ in range(weights)]
    return both_ways(lambda: apply(*rows, *columns, *more))


@case
def liger_rms_norm() -> Call:
    return _liger_rows("rms_norm", "LigerRMSNormFunction", 1e-6, 0.0, "llama", False, weights=1)


@case
def liger_layer_norm() -> Call:
    return _liger_rows("layer_norm", "LigerLayerNormFunction", 1e-6, weights=2)


@case
def liger_swiglu() -> Call:
    return _liger_rows("swiglu", "LigerSiLUMulFunction", inputs=2)


@case
def liger_geglu() -> Call:
    return _liger_rows("geglu", "LigerGELUMulFunction", inputs=2)


@case
def liger_softmax() -> Call:
    return _liger_rows("softmax", "LigerSoftmaxFunction")


@case
def liger_sparsemax() -> Call:
    apply = liger("sparsemax", "LigerSparsemaxFunction").apply
    x = normal(2048, 1024, grad=True, dtype="float32")
    return both_ways(lambda: apply(x, -1))


@case
def liger_relu_squared() -> Call:
    return _liger_rows("relu_squared", "LigerReLUSquaredFunction")


@case
def liger_poly_norm() -> Call:
    apply = liger("poly_norm", "LigerPolyNormFunction").apply
    x, weight, bias = normal(ROWS, COLUMNS, grad=True), normal(3, grad=True), normal(grad=True)
    return both_ways(lambda: apply(x, weight, bias, 1e-6, False))


@case
def liger_fused_add_rms_norm() -> Call:
    apply = liger("fused_add_rms_norm", "LigerFusedAddRMSNormFunction").apply
    x, residual, weight = normal(ROWS, COLUMNS, grad=True), normal(ROWS, COLUMNS), normal(COLUMNS, grad=True)
    return both_ways(lambda: apply(x, residual, weight, 1e-6, 0.0, "llama", False))


@case
def liger_cross_entropy() -> Call:
    import torch

    apply = liger("cross_entropy", "LigerCrossEntropyFunction").apply
    x = normal(4096, 32768, grad=True)
    labels = torch.zeros(4096, dtype=torch.int64, device="cuda")
    return lambda: apply(x, labels, None, -100, 0.0, 0.0, "mean", None, False)


@case
def liger_kl_div() -> Call:
    apply = liger("kl_div", "LigerKLDivLossFunction").apply
    x, y = normal(ROWS, COLUMNS, grad=True, dtype="float32"), normal(ROWS, COLUMNS, dtype="float32")
    return lambda: apply(x, y).backward()


@case
def liger_jsd() -> Call:
    apply = liger("jsd", "LigerJSDFunction").apply
    x, y = normal(ROWS, COLUMNS, grad=True, dtype="float32"), normal(ROWS, COLUMNS, dtype="float32")
    return lambda: apply(x, y)


@case
def liger_tvd() -> Call:
    apply = liger("tvd", "LigerTVDLossFunction").apply
    x, y = normal(ROWS, COLUMNS, grad=True, dtype="float32"), normal(ROWS, COLUMNS, dtype="float32")
    return lambda: apply(x, y)


@case
def liger_group_norm() -> Call:
    apply = liger("group_norm", "LigerGroupNormFunction").apply
    x, weight, bias = normal(32, 512, 1024, grad=True), normal(512, grad=True), normal(512, grad=True)
    return both_ways(lambda: apply(x, weight, bias, 512, 32, 1e-5))


@case
def liger_rope() -> Call:
    apply = liger("rope", "LigerRopeFunction").apply
    q, k = normal(4, 32, 4096, 128, grad=True), normal(4, 8, 4096, 128, grad=True)
    cos, sin = normal(1, 4096, 128), normal(1, 4096, 128)
    return lambda: apply(q, k, cos, sin)


@case
def liger_dyt() -> Call:
    apply = liger("dyt", "LigerDyTFunction").apply
    x, alpha = normal(ROWS, COLUMNS, grad=True), normal(1, grad=True)
    gamma, beta = normal(COLUMNS, grad=True), normal(COLUMNS, grad=True)
    return both_ways(lambda: apply(x, alpha, gamma, beta))


def _attorch(layer: Callable[[Any], Any], *shape: int, dtype: str = "float32") -> Call:
    import attorch

    module = layer(attorch).to("cuda")
    x = normal(*shape, grad=True, dtype=dtype)
    return both_ways(lambda: module(x))


@case
def attorch_gelu() -> Call:
    return _attorch(lambda library: library.GELU(), ROWS, COLUMNS)


@case
def attorch_softmax() -> Call:
    return _attorch(lambda library: library.Softmax(dim=-1), ROWS, COLUMNS)


@case
def attorch_layer_norm() -> Call:
    return _attorch(lambda library: library.LayerNorm(COLUMNS), ROWS, COLUMNS)


@case
def attorch_dropout() -> Call:
    return _attorch(lambda library: library.Dropout(0.3), ROWS * COLUMNS)


@case
def attorch_batch_norm() -> Call:
    return _attorch(lambda library: library.BatchNorm2d(256), 32, 256, 56, 56)


@case
def attorch_linear() -> Call:
    return _attorch(lambda library: library.Linear(2048, 2048), 4096, 2048)


@case
def attorch_conv2d() -> Call:
    return _attorch(lambda library: library.Conv2d(64, 64, 3, padding=1), 16, 64, 56, 56)


def fla(module: str, *functions: str) -> Any:
    made = __import__(f"fla.{module}", fromlist=[*functions])
    return [getattr(made, one) for one in functions]


def _fla_heads(module: str, function: str, gates: str = "") -> Call:
    """Return a call of an attention of flash-linear-attention on 16 heads of 128 and 4,096 tokens."""
    [attend] = fla(module, function)
    shape = (2, 4096, 16, 128)
    q, k, v = (normal(*shape, grad=True) for _ in range(3))
    gate = {"": (), "head": (normal(*shape[:3], grad=True),), "element": (normal(*shape, grad=True),)}[gates]
    return both_ways(lambda: attend(q, k, v, *gate))


@case
def fla_linear_attention() -> Call:
    return _fla_heads("ops.linear_attn", "chunk_linear_attn")


@case
def fla_retention() -> Call:
    return _fla_heads("ops.retention", "chunk_retention")


@case
def fla_gla() -> Call:
    return _fla_heads("ops.gla", "chunk_gla", "element")


@case
def fla_delta_rule() -> Call:
    return _fla_heads("ops.delta_rule", "chunk_delta_rule", "head")


@case
def fla_attention() -> Call:
    return _fla_heads("ops.attn", "parallel_attn")


@case
def fla_cumsum() -> Call:
    local, whole = fla("ops.utils.cumsum", "chunk_local_cumsum", "chunk_global_cumsum")
    x = normal(4, 8192, 512, dtype="float32")
    return lambda: (local(x, 64), whole(x))


@case
def flash_cross_entropy() -> Call:
    import torch

    bare("flash_attn", "flash_attn.ops")
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    logits = normal(4096, 32768, grad=True)
    labels = torch.zeros(4096, dtype=torch.int64, device="cuda")
    return lambda: cross_entropy_loss(logits, labels)[0].sum().backward()


@case
def flash_layer_norm() -> Call:
    bare("flash_attn", "flash_attn.ops")
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    x, residual, weight = normal(ROWS, COLUMNS, grad=True), normal(ROWS, COLUMNS), normal(COLUMNS, grad=True)
    return both_ways(lambda: rms_norm_fn(x, weight, None, residual=residual))


@case
def flash_rotary() -> Call:
    bare("flash_attn", "flash_attn.ops")
    from flash_attn.ops.triton.rotary import apply_rotary

    x, angles = normal(4, 4096, 32, 128), normal(4096, 64)
    return lambda: apply_rotary(x, angles, angles)


@case
def bnb_8bit() -> Call:
    bare("bitsandbytes", "bitsandbytes.backends", "bitsandbytes.backends.triton")
    from bitsandbytes.backends.triton.kernels_8bit_quant import dequant_8bit_blockwise, quantize_blockwise_triton

    x, code = normal(1 << 25, dtype="float32"), normal(256, dtype="float32")

    def run() -> None:
        quantised, largest = quantize_blockwise_triton(x, code, 256)
        dequant_8bit_blockwise(quantised, largest, code, 256, dtype=x.dtype)

    return run


@case
def lightllm_rows() -> Call:
    bare("lightllm", "lightllm.models", "lightllm.models.llama", "lightllm.models.llama.triton_kernel")
    from lightllm.models.llama.triton_kernel.rmsnorm import rmsnorm_forward
    from lightllm.models.llama.triton_kernel.silu_and_mul import silu_and_mul_fwd

    x, weight, half = normal(ROWS, COLUMNS), normal(COLUMNS), normal(ROWS, COLUMNS // 2)
    return lambda: (rmsnorm_forward(x, weight, 1e-5), silu_and_mul_fwd(x, half))


@case
def lightllm_copy_kv() -> Call:
    import torch

    names = ("lightllm", "lightllm.common", "lightllm.common.basemodel", "lightllm.common.basemodel.triton_kernel")
    bare(*names)
    from lightllm.common.basemodel.triton_kernel.destindex_copy_kv import destindex_copy_kv

    keys, cache = normal(16384, 32, 128), normal(16384, 32, 128)
    slots = torch.arange(16384, device="cuda", dtype=torch.int32)
    return lambda: destindex_copy_kv(keys, slots, cache)


@case
def mamba_norms() -> Call:
    bare("mamba_ssm", "mamba_ssm.ops")
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

    x, gate, weight = normal(ROWS, COLUMNS, grad=True), normal(ROWS, COLUMNS, grad=True), normal(COLUMNS, grad=True)
    return both_ways(lambda: rmsnorm_fn(x, weight, None, z=gate))


@case
def mamba_state_update() -> Call:
    bare("mamba_ssm", "mamba_ssm.ops")
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    state, a = normal(64, 4096, 128, dtype="float32"), normal(4096, 128, dtype="float32")
    x, dt, z = (normal(64, 4096, dtype="float32") for _ in range(3))
    b, c = (normal(64, 128, dtype="float32") for _ in range(2))
    d, bias = (normal(4096, dtype="float32") for _ in range(2))
    return lambda: selective_state_update(state, x, dt, a, b, c, D=d, z=z, dt_bias=bias, dt_softplus=True)


@case
def sglang_softcap() -> Call:
    bare("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.activation")
    from sglang.kernels.ops.activation.softcap import softcap_out

    x = normal(ROWS, COLUMNS)
    return lambda: softcap_out(x, 30.0)


@case
def torchao_activation_quant() -> Call:
    bare("torchao", "torchao.prototype", "torchao.prototype.blockwise_fp8_inference")
    from torchao.prototype.blockwise_fp8_inference.kernels import fp8_blockwise_act_quant

    x = normal(ROWS, COLUMNS)
    return lambda: fp8_blockwise_act_quant(x)


def _unsloth() -> None:
    import triton
    from triton.language.extra import libdevice

    bare("unsloth", "unsloth.kernels")
    bare("unsloth.device_type", DEVICE_TYPE="cuda", DEVICE_COUNT=1)
    bare(
        "unsloth.kernels.utils",
        calculate_settings=lambda n: (triton.next_power_of_2(n), 8),
        torch_gpu_device=lambda device: nullcontext(),
        torch_device_stream=None,
        triton_tanh=libdevice.tanh,
        MAX_FUSED_SIZE=65536,
    )


@case
def unsloth_rms_norm() -> Call:
    _unsloth()
    bare("transformers", "transformers.models", "transformers.models.llama", "transformers.models.mllama")
    bare("transformers.models.llama.modeling_llama", LlamaRMSNorm=object)
    bare("transformers.models.mllama.modeling_mllama", MllamaTextRMSNorm=object)
    from unsloth.kernels.rms_layernorm import fast_rms_layernorm

    x = normal(4, ROWS // 4, COLUMNS, grad=True)
    norm = SimpleNamespace(weight=normal(COLUMNS, grad=True), variance_epsilon=1e-6)
    return both_ways(lambda: fast_rms_layernorm(norm, x))


@case
def unsloth_activations() -> Call:
    _unsloth()
    from unsloth.kernels.geglu import geglu_exact_forward_kernel
    from unsloth.kernels.swiglu import swiglu_DWf_DW_dfg_kernel, swiglu_fg_kernel

    gate, up = (normal(4, ROWS // 4, COLUMNS) for _ in range(2))
    rows = [normal(ROWS, COLUMNS) for _ in range(3)]
    return lambda: (
        geglu_exact_forward_kernel(gate, up),
        swiglu_fg_kernel(gate, up),
        swiglu_DWf_DW_dfg_kernel(*rows),
    )


def _vllm() -> None:
    import torch
    import triton
    import triton.language as tl

    platform = SimpleNamespace(
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        is_cuda_alike=lambda: True,
        fp8_dtype=lambda: torch.float8_e4m3fn,
        has_device_capability=lambda *version: True,
    )
    bare("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.ops", "vllm.utils")
    bare("vllm.triton_utils", triton=triton, tl=tl)
    bare("vllm.platforms", current_platform=platform)
    bare("vllm.model_executor", "vllm.model_executor.layers", "vllm.model_executor.layers.quantization")


@case
def vllm_awq() -> Call:
    import torch

    _vllm()
    from vllm.model_executor.layers.quantization.awq_triton import awq_dequantize_triton, awq_gemm_triton

    whole = {"device": "cuda", "dtype": torch.int32}
    weight, zeros = torch.zeros(4096, 512, **whole), torch.zeros(32, 512, **whole)
    scales, x = normal(32, 4096, dtype="float16"), normal(64, 4096, dtype="float16")
    return lambda: (
        awq_dequantize_triton(weight, scales, zeros),
        awq_gemm_triton(x, weight, scales, zeros, split_k_iters=4),
    )


@case
def vllm_merge_states() -> Call:
    _vllm()
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

    output, prefix, suffix = (normal(8192, 32, 128) for _ in range(3))
    first, second = (normal(32, 8192, dtype="float32") for _ in range(2))
    return lambda: merge_attn_states(output, prefix, first, suffix, second)


@case
def vllm_prefill_attention() -> Call:
    import torch

    _vllm()
    from vllm.v1.attention.ops.triton_prefill_attention import context_attention_fwd

    q, k, v, o = normal(8192, 32, 128), normal(8192, 8, 128), normal(8192, 8, 128), normal(8192, 32, 128)
    starts = torch.tensor([0, 4096], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([4096, 4096], dtype=torch.int32, device="cuda")
    return lambda: context_attention_fwd(q, k, v, o, starts, lengths, 4096)


@case
def xformers_rows() -> Call:
    import torch

    bare("xformers", "xformers.ops", "xformers.ops._triton")
    from xformers.ops._triton.k_index_select_cat import index_select_cat_fwd
    from xformers.ops._triton.rmsnorm_kernels import _rms_norm_forward

    x, weight, output = normal(ROWS, COLUMNS), normal(COLUMNS), normal(ROWS // 2, COLUMNS)
    index = torch.arange(ROWS // 2, device="cuda")
    return lambda: (_rms_norm_forward(x, weight, 1e-6), index_select_cat_fwd(output, x, index))
