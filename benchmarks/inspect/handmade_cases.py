"""Calls of other libraries' kernels on small inputs, for `handmade.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import triton


@dataclass(frozen=True)
class Case:
    """A file of a library, and a call that returns what its kernels compute."""

    library: str
    file: str
    call: Callable[[Any], Any]


CASES: dict[str, Case] = {}


def case(library: str, file: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a function that takes the module of the file."""

    def register(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        CASES[call.__name__] = Case(library, file, call)
        return call

    return register


def stand_ins() -> None:
    """Make what the files import from their own packages, which need a GPU build or other packages."""
    config = triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8}, num_warps=4)
    stand_in("mamba_ssm.utils.determinism", autotune_configs=lambda configs: configs)
    stand_in("field.triton_matmul_configs", configs=[config], get_full_amd_config_space=None)
    stand_in("field.autotuning", get_forward_configs=lambda *_: [], prune_kernel_configs_fwd=None)
    stand_in("field.moe_sum_recude_config", MoeSumReduceKernelConfig=None)
    stand_in("lightllm.common.basemodel.layer_infer.cache_tensor_manager", g_cache_manager=None)
    stand_in("lightllm.utils.envs_utils")


def stand_in(name: str, **values: Any) -> None:
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        package = ".".join(parts[:number])
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = []
    for key, value in values.items():
        setattr(sys.modules[name], key, value)


def normal(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=grad)


@case("torchao", "torchao/prototype/quantized_training/int8_mm.py")
def torchao_int8_mm(module: Any) -> Any:
    a, b = (
        torch.randint(-9, 9, shape, device="cuda", dtype=torch.int8)
        for shape in ((200, 80), (80, 150))
    )  # fmt: skip
    return module.scaled_int8_mm_cuda(a, b, normal(200).abs(), normal(150).abs())


@case("tritonbench", "tritonbench/operators/gemm/triton_matmul.py")
def tritonbench_matmul(module: Any) -> Any:
    return module.matmul(normal(200, 100).half(), normal(100, 150).half())


@case("lmdeploy", "lmdeploy/pytorch/kernels/cuda/apply_rotary_pos_emb.py")
def lmdeploy_rotary(module: Any) -> Any:
    return module.apply_rotary_pos_emb(normal(48, 6, 64), normal(48, 2, 64), normal(48, 64), normal(48, 64))


@case("mamba", "mamba_ssm/ops/triton/ssd_bmm.py")
def mamba_bmm_chunk(module: Any) -> Any:
    return module._bmm_chunk_fwd(normal(2, 80, 2, 40), normal(2, 80, 2, 40), 32)


@case("mamba", "mamba_ssm/ops/triton/ssd_state_passing.py")
def mamba_state_passing(module: Any) -> Any:
    return module._state_passing_fwd(normal(2, 3, 2, 64), -torch.rand(2, 2, 3, device="cuda"))[0]


@case("sglang", "sglang/kernels/ops/moe/gate_topk.py")
def sglang_topk(module: Any) -> Any:
    return module.gate_topk(normal(40, 50), 6)


@case("sglang", "sglang/kernels/ops/attention/merge_state.py")
def sglang_merge_state(module: Any) -> Any:
    return module.merge_state_triton(normal(7, 3, 48), normal(7, 3), normal(7, 3, 48), normal(7, 3))


@case("lightllm", "lightllm/models/bloom/triton_kernel/layernorm.py")
def lightllm_layer_norm(module: Any) -> Any:
    x, y = normal(5, 400)[:, :300], torch.empty(5, 400, device="cuda")[:, :300]
    module._layer_norm_fwd_fused[(5,)](
        x, y, normal(300), normal(300), 400, 300, 1e-5, BLOCK_SIZE=512, num_warps=4
    )  # fmt: skip
    return y


@case("lightllm", "lightllm/common/fused_moe/moe_sum_reduce.py")
def lightllm_sum_reduce(module: Any) -> Any:
    x, y = normal(11, 4, 200).half(), torch.empty(11, 200, device="cuda", dtype=torch.half)
    module.moe_sum_reduce(x, y, BLOCK_M=2, BLOCK_DIM=128, NUM_STAGE=1, num_warps=4)
    return y


@case("lightllm", "lightllm/models/vit/triton_kernel/gelu_vit.py")
def lightllm_gelu(module: Any) -> Any:
    return module.gelu_fwd(normal(3, 700))


@case("tutorials", "05-layer-norm.py")
def tutorials_layer_norm(module: Any) -> Any:
    """270 rows share 256 locks."""
    x, weight, bias = normal(270, 40, grad=True), normal(40, grad=True), normal(40, grad=True)
    y = module.layer_norm(x, (40,), weight, bias, 1e-5)
    y.backward(normal(270, 40))
    return weight.grad, bias.grad, x.grad, y


@case("tutorials", "09-persistent-matmul.py")
def tutorials_tma(module: Any) -> Any:
    return module.matmul_tma(normal(200, 128).half(), normal(304, 128).half(), False)


@case("tutorials", "09-persistent-matmul.py")
def tutorials_device_descriptor(module: Any) -> Any:
    return module.matmul_descriptor_persistent(normal(200, 128).half(), normal(304, 128).half(), False)


@case("unsloth", "unsloth/kernels/moe/grouped_gemm/kernels/forward.py")
def unsloth_grouped_gemm(module: Any) -> Any:
    x, weight = normal(90, 64).half(), normal(3, 48, 64).half()
    y = torch.empty(90, 48, device="cuda", dtype=torch.half)
    rows = torch.tensor([50, 11, 29], device="cuda", dtype=torch.int32)
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    module._grouped_gemm_forward_kernel[(4,)](
        x, weight, y, rows, None, None, 3, 90, 1, 48, 64, 4,
        BLOCK_SIZE_M=32, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, USE_TMA_LOAD_W=True, USE_TMA_LOAD_X=True,
    )  # fmt: skip
    return y


@case("tutorials", "gluon/03-async-copy.py")
def gluon_copy(module: Any) -> Any:
    x = normal(1000)
    y = torch.empty_like(x)
    module.memcpy_1d_cpasync(x, y, 256)
    return y


@case("tutorials", "gluon/03-async-copy.py")
def gluon_add(module: Any) -> Any:
    from triton.experimental.gluon import language as gl

    a, b = normal(50, 200), normal(50, 200)
    c = torch.empty_like(a)
    layout = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0])
    module.elementwise_add_cpasync(a, b, c, layout)
    return c


@case("tutorials", "gluon/04-tma.py")
def gluon_tma(module: Any) -> Any:
    a, b = normal(50, 200), normal(50, 200)
    c = torch.empty_like(a)
    module.elementwise_add_tma(a, b, c)
    return c


@case("tutorials", "gluon/05-wgmma.py")
def gluon_wgmma(module: Any) -> Any:
    a, b, c = normal(64, 32).half(), normal(32, 32).half(), normal(64, 32)
    d = torch.empty_like(c)
    module.small_mma(a, b, c, d, 16)
    return d


@case("conch", "conch/kernels/vision/voxelization.py")
def conch_voxels(module: Any) -> Any:
    """600 points in 32 voxels of 3 places; some points lie outside."""
    points = torch.rand(600, 4, device="cuda") * 5
    counts = torch.zeros(32, device="cuda", dtype=torch.int32)
    dense = torch.zeros(32, 3, 4, device="cuda")
    module.generate_dense_voxels_triton_kernel[(3,)](
        points, 600, 0.0, 0.0, 0.0, 4.0, 4.0, 2.0, 1.0, 1.0, 1.0, 4, 4, 2, 3, counts, dense, cxpr_block_size=256
    )  # fmt: skip
    return counts, dense


@case("conch", "conch/kernels/vision/nms.py")
def conch_nms(module: Any) -> Any:
    corner, size = torch.rand(40, 2, device="cuda") * 30, torch.rand(40, 2, device="cuda") * 20 + 1
    boxes, scores = torch.cat([corner, corner + size], 1), torch.rand(40, device="cuda")
    close = torch.zeros(40, 40, device="cuda", dtype=torch.bool)
    return module.nms_launcher(boxes, scores, close, torch.ones(40, device="cuda", dtype=torch.bool), 0.3)


@case("conch", "conch/kernels/vllm/reshape_and_cache.py")
def conch_reshape_cache(module: Any) -> Any:
    """The fourth token has no slot."""
    keys, values = (torch.zeros(3, 4, 2, 24, device="cuda") for _ in range(2))
    slots = torch.tensor([0, 5, 1, -1, 9], device="cuda")
    module.reshape_and_cache_launcher(normal(5, 2, 24), normal(5, 2, 24), keys, values, slots)
    return keys, values


@case("conch", "conch/kernels/vllm/copy_blocks.py")
def conch_copy_blocks(module: Any) -> Any:
    keys, values = ([normal(6, 300) for _ in range(3)] for _ in range(2))
    module.copy_blocks_launcher(keys, values, torch.tensor([[0, 3], [1, 4]], device="cuda"))
    return (*keys, *values)


@case("conch", "conch/kernels/embedding/rotary_embedding.py")
def conch_rotary(module: Any) -> Any:
    query, key = normal(9, 6 * 64), normal(9, 2 * 64)
    module.rotary_embedding_launcher(torch.arange(9, device="cuda"), query, key, 64, normal(16, 64))
    return query, key


@case("scan", "accelerated_scan/scalar.py")
def scan_forward(module: Any) -> Any:
    """The sequence is longer than a block of 2,048."""
    return module.scan(torch.rand(2, 3, 2100, device="cuda"), normal(2, 3, 2100))


@case("scan", "accelerated_scan/scalar.py")
def scan_backward(module: Any) -> Any:
    """Sequences of one whole block: the kernel reads past the end of shorter ones."""
    forget, inputs = torch.rand(1, 2, 2048, device="cuda", requires_grad=True), normal(1, 2, 2048, grad=True)
    module.scan(forget, inputs).square().sum().backward()
    return forget.grad, inputs.grad


@case("lightning", "lightning_attn/ops/triton/srmsnorm.py")
def lightning_norm(module: Any) -> Any:
    """The second row is zero."""
    x = normal(5, 60) * torch.tensor([1.0, 0, 1, 1, 1], device="cuda")[:, None]
    y = module.SimpleRMSNorm(60)(x.requires_grad_())
    return (y, *torch.autograd.grad(y.square().sum(), x))


@case("flashinfer", "flashinfer/triton/kernels/cascade.py")
def flashinfer_ragged(module: Any) -> Any:
    ends = torch.tensor([0, 2, 3, 6], device="cuda", dtype=torch.int32)
    merged, scores = torch.empty(3, 2, 8, device="cuda"), torch.empty(3, 2, device="cuda")
    module.variable_length_merge_states_kernel[(3,)](
        normal(6, 2, 8), normal(6, 2), ends, merged, scores, 2, 8, bdx=8, bdy=2
    )  # fmt: skip
    return merged, scores


@case("flashinfer", "flashinfer/triton/kernels/cascade.py")
def flashinfer_in_place(module: Any) -> Any:
    v, s = normal(4, 2, 8), normal(4, 2)
    module.merge_state_in_place_kernel[(4,)](v, s, normal(4, 2, 8), normal(4, 2), 2, 8, None, bdx=8, bdy=2)
    return v, s
