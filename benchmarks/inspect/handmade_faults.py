"""Faults for `handmade.py`: fragments of other libraries' kernels, and what replaces them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Planted:
    """A fault: its case, its class, the fragments and what replaces them, and the kinds of findings that name it."""

    case: str
    kind: str
    edits: tuple[tuple[str, str], ...]
    expected: tuple[str, ...]
    compiles: bool = False  # the compiler finds it
    harmless: str = ""  # why the fault has no effect


def fault(case: str, kind: str, old: str, new: str, expected: str, **options: Any) -> Planted:
    return Planted(case, kind, ((old, new),), tuple(expected.split()), **options)


FAULTS = (
    fault("torchao_int8_mm", "wrong stride", "A += BLOCK_K * stride_ak", "A += BLOCK_K * stride_am", "out-of-bounds"),
    fault("torchao_int8_mm", "missing other", "rk[:, None] < k, other=0.0", "rk[:, None] < k", "undefined"),
    fault("torchao_int8_mm", "bounds", "multiple_of(rm % M, BLOCK_M)", "multiple_of(rm, BLOCK_M)", "out-of-bounds"),
    Planted(
        "tritonbench_matmul",
        "half accumulator",
        (
            ("tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)", "tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)"),
            ("accumulator += tl.dot(a, b)", "accumulator += tl.dot(a, b, out_dtype=tl.float16)"),
        ),
        ("low-precision",),
    ),
    fault("tritonbench_matmul", "false assume", "assume(pid_m >= 0)", "assume(pid_m > 0)", "false-hint"),
    fault("tritonbench_matmul", "mask", " & (offs_cn[None, :] < N)", "", "race out-of-bounds"),
    fault(
        "tritonbench_matmul",
        "floored grid",
        'triton.cdiv(N, META["BLOCK_N"])',
        '(N // META["BLOCK_N"])',
        "uninitialised",
    ),
    fault(
        "tritonbench_matmul", "wrong stride", "stride_cm * offs_cm[:,", "stride_cn * offs_cm[:,", "race uninitialised"
    ),
    fault(
        "lmdeploy_rotary",
        "false hint",
        "multiple_of(pos_offset % seq_len",
        "multiple_of((pos_offset + 1) % seq_len",
        "false-hint",
    ),
    fault(
        "lmdeploy_rotary",
        "wrong stride",
        "qel_ptrs += head_id * stride_qeh",
        "qel_ptrs += head_id * stride_qes",
        "out-of-bounds race uninitialised",
    ),
    fault(
        "mamba_bmm_chunk",
        "int32 overflow",
        "chunk_size * stride_a_seqlen +",
        "chunk_size * stride_a_seqlen * 1048576 // 1048576 +",
        "overflow",
    ),
    fault(
        "mamba_bmm_chunk",
        "bounds",
        "mask=(offs_m[:, None] < chunk_size_limit) & (offs_k",
        "mask=(offs_m[:, None] < chunk_size) & (offs_k",
        "out-of-bounds",
    ),
    fault(
        "mamba_state_passing",
        "wrong stride",
        "        out_ptrs += stride_out_chunk",
        "        out_ptrs += stride_out_head",
        "race uninitialised",
    ),
    fault("sglang_topk", "mask", "(mask_m[:, None] & mask_n[None, :])", "(mask_m[:, None])", "out-of-bounds"),
    fault("sglang_topk", "missing other", 'mask_n[None, :]), other=float("-inf")', "mask_n[None, :])", "undefined"),
    fault("sglang_topk", "mask", "y_indices, mask=mask_mk)", "y_indices, mask=mask_m[:, None])", "race out-of-bounds"),
    fault("sglang_merge_state", "exp overflow", "out_se = tl.exp(p_lse)", "out_se = tl.exp(300 + p_lse)", "not-finite"),
    fault(
        "lightllm_layer_norm",
        "view",
        "a = tl.load(X + cols, mask=cols < N,",
        "a = tl.load(X + cols, mask=cols < stride,",
        "out-of-bounds",
    ),
    fault("lightllm_layer_norm", "race", "row = tl.program_id(0)", "row = tl.program_id(0) // 2", "race uninitialised"),
    Planted(
        "lightllm_layer_norm",
        "half accumulator",
        (
            ("_var = tl.zeros([BLOCK_SIZE], dtype=tl.float32)", "_var = tl.zeros([BLOCK_SIZE], dtype=tl.float16)"),
            ("_var += x * x", "_var += (x * x).to(tl.float16)"),
        ),
        ("low-precision",),
    ),
    fault(
        "lightllm_sum_reduce",
        "half accumulator",
        "tl.zeros((BLOCK_DIM,), dtype=tl.float32)",
        "tl.zeros((BLOCK_DIM,), dtype=tl.float16)",
        "low-precision",
    ),
    fault(
        "lightllm_sum_reduce",
        "int32 overflow",
        "dim_block_id = tl.program_id(1)",
        "dim_block_id = tl.program_id(1) * 67108864 * 64 // 64",
        "overflow",
    ),
    fault("lightllm_gelu", "uninitialised", "offsets < n_elements", "offsets < n_elements - 4", "uninitialised"),
    fault(
        "tutorials_layer_norm",
        "missing barrier",
        "    tl.debug_barrier()\n",
        "    pass\n",
        "race",
        harmless="Triton 3.9 puts a barrier before an atomic that releases; Triton 3.6 does not",
    ),
    fault(
        "tutorials_layer_norm",
        "atomics order",
        "tl.atomic_xchg(Lock, 0)",
        'tl.atomic_xchg(Lock, 0, sem="relaxed")',
        "race",
    ),
    fault(
        "tutorials_layer_norm",
        "atomics order",
        "tl.atomic_cas(Lock, 0, 1) ==",
        'tl.atomic_cas(Lock, 0, 1, sem="relaxed") ==',
        "race",
    ),
    fault("tutorials_layer_norm", "open lock", "tl.atomic_cas(Lock, 0, 1) ==", "tl.atomic_cas(Lock, 0, 0) ==", "race"),
    fault("tutorials_layer_norm", "bounds", "Lock + GROUP_SIZE_M", "Lock + GROUP_SIZE_M * 2", "out-of-bounds"),
    fault(
        "tutorials_layer_norm",
        "uninitialised",
        "torch.zeros(2 * GROUP_SIZE_M",
        "torch.empty(2 * GROUP_SIZE_M",
        "uninitialised",
    ),
    fault(
        "tutorials_tma",
        "descriptor",
        "b_desc.load([offs_bn, offs_k])",
        "b_desc.load([offs_k + offs_bn * 2, offs_k])",
        "out-of-bounds",
    ),
    fault(
        "tutorials_tma",
        "descriptor",
        "offs_cn = pid_n * BLOCK_SIZE_N\n    c_desc",
        "offs_cn = pid_n * BLOCK_SIZE_N * 2\n    c_desc",
        "out-of-bounds uninitialised",
    ),
    fault(
        "tutorials_device_descriptor",
        "descriptor",
        "shape=[N, K],\n        strides=[K, 1]",
        "shape=[N, K],\n        strides=[N, 1]",
        "out-of-bounds",
    ),
    fault(
        "tutorials_device_descriptor",
        "descriptor",
        "strides=[N, 1],\n        block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_N if",
        "strides=[N - 8, 1],\n        block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_N if",
        "race uninitialised",
    ),
    fault("unsloth_grouped_gemm", "mask", "[:, None] < m_size\n", "[:, None] < m_size + 8\n", "race out-of-bounds"),
    fault(
        "unsloth_grouped_gemm",
        "descriptor",
        "x_desc.load([m_start + off_am, k_offset])",
        "x_desc.load([m_start + off_am, K + k_offset])",
        "out-of-bounds",
    ),
    fault("gluon_copy", "missing wait", "    cp.wait_group(0)\n\n    value", "    pass\n\n    value", "race"),
    fault(
        "gluon_add", "missing wait", "cp.wait_group(0)\n\n        a_val", "cp.wait_group(1)\n\n        a_val", "race"
    ),
    fault(
        "gluon_tma",
        "missing wait",
        "    mbarrier.wait(bars.index(read_index % num_buffers), read_phase)",
        "    pass",
        "race",
    ),
    fault("gluon_tma", "missing wait", "    tma.store_wait(pendings=0)\n    c_smem", "    pass\n    c_smem", "race"),
    fault(
        "gluon_tma",
        "missing fence",
        "c_smem.store(c_val)\n    fence_async_shared()",
        "c_smem.store(c_val)\n    pass",
        "race",
        harmless="the compiler inserts the fence: the PTX has as many as before",
    ),
    fault(
        "gluon_tma",
        "wrong phase",
        "read_phase = read_index // num_buffers & 1",
        "read_phase = 1 - (read_index // num_buffers & 1)",
        "kernel-error",
    ),
    fault(
        "gluon_wgmma",
        "missing wait",
        "    d = warpgroup_mma_wait(num_outstanding=0, deps=(d, ))",
        "    pass",
        "compile-error",
        compiles=True,
    ),
    fault(
        "conch_voxels",
        "lost update",
        "point_idx_in_voxel = tl.atomic_add(dense_num_points_per_voxel_ptr + flat_voxel_idx, 1, mask=valid_point)",
        "point_idx_in_voxel = tl.load(dense_num_points_per_voxel_ptr + flat_voxel_idx, mask=valid_point, other=0);"
        " tl.store(dense_num_points_per_voxel_ptr + flat_voxel_idx, point_idx_in_voxel + 1, mask=valid_point)",
        "race",
    ),
    fault(
        "conch_voxels",
        "counter without limit",
        "valid_point & (point_idx_in_voxel < max_num_points_per_voxel)",
        "valid_point",
        "race out-of-bounds",
    ),
    fault(
        "conch_voxels",
        "index from data",
        "(voxel_z >= 0) & (voxel_z < grid_dim_z)",
        "(voxel_z >= 0)",
        "out-of-bounds",
    ),
    fault("conch_nms", "missing barrier in a loop", "            tl.debug_barrier()\n", "            pass\n", "race"),
    fault("conch_nms", "serial kernel on many programs", "stage2_grid = (1,)", "stage2_grid = (2,)", "race"),
    fault(
        "conch_reshape_cache",
        "sentinel index",
        "    if slot_index < 0:\n        return\n",
        "    if slot_index < -9:\n        return\n",
        "out-of-bounds",
    ),
    fault(
        "conch_reshape_cache",
        "colliding map",
        "page_index = slot_index // cache_block_size",
        "page_index = slot_index // (2 * cache_block_size)",
        "race",
    ),
    fault(
        "conch_copy_blocks",
        "table of pointers",
        "tl.load(value_cache_ptrs + layer_index)",
        "tl.load(value_cache_ptrs + layer_index + 1)",
        "out-of-bounds",
    ),
    fault(
        "conch_rotary",
        "stale read",
        "tl.store(query_offset + y_index, y_rot, mask=mask)",
        "tl.store(query_offset + y_index, y_rot + tl.load(query_offset + embed_dim - 1 - x_index, mask), mask=mask)",
        "race",
    ),
    fault(
        "scan_forward",
        "loop too short",
        "nblocks = tl.cdiv(seqlen, BLOCK)",
        "nblocks = seqlen // BLOCK",
        "uninitialised",
    ),
    fault(
        "scan_forward",
        "programs share a sequence",
        "sequence_id = tl.num_programs(axis=1) * bsz + chan",
        "sequence_id = (tl.num_programs(axis=1) - 1) * bsz + chan",
        "race uninitialised",
    ),
    fault("scan_backward", "negative index", "offset - 1, mask=t > 0", "offset - 1, mask=t >= 0", "out-of-bounds"),
    fault("lightning_norm", "missing epsilon", "tl.sqrt(x_var + eps)", "tl.sqrt(x_var)", "not-finite"),
    fault("lightning_norm", "missing offset", "tl.store(V + row, rstd)", "tl.store(V, rstd)", "race uninitialised"),
    fault(
        "flashinfer_ragged",
        "table of offsets",
        "tl.load(indptr + pos + 1)",
        "tl.load(indptr + pos + 2)",
        "out-of-bounds",
    ),
    fault(
        "flashinfer_in_place",
        "reads a neighbour in place",
        "v_vec = tl.load(v_ptr + offset)",
        "v_vec = tl.load(v_ptr + offset % (num_heads * head_dim))",
        "race",
    ),
)
