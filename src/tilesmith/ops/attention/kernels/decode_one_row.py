"""Decoding with one query to each head of keys, without tensor cores.

A tile of queries for tensor cores has 16 rows, and 15 of them would be empty. Here the threads that load a key multiply
it themselves. Each of the BLOCK_KEYS places in a block of keys has a maximum, a sum and an output of its own, so the
loop over blocks exchanges nothing between warps. The places are combined once, at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilesmith.ops.attention.device.tiles import (
    NOT_SPECIALISED,
    HeadRows,
    head_start,
    is_attended,
    is_seen,
    keys_seen,
    load_tile,
)
from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.device.constants import LOG2_E

FILLED = 0.8  # tiles per multiprocessor that read the keys as fast as more do


@triton.jit(do_not_specialize=[*NOT_SPECIALISED, "n_splits", "keys_per_split"])
def attention_decode_row_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, output_ptr, lse_ptr,
    q_strides, k_strides, v_strides, mask_strides, output_strides,
    n_sequences, n_heads, key_rows, left, right, scale, n_splits, keys_per_split,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, COMPUTE: tl.constexpr, WALK: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the output and lse of one query of one head for one split of the keys, as `attention_decode_kernel`."""
    split = tl.program_id(0) % n_splits
    head = tl.program_id(0) // n_splits % n_heads
    sequence = tl.program_id(0) // n_splits // n_heads
    place = (sequence,)
    columns = tl.arange(0, BLOCK_HEAD)
    in_head = columns < HEAD
    q_pointers = head_start(q_ptr, q_strides, place, head, 0) + columns.to(tl.int64) * q_strides[3]
    q = tl.load(q_pointers, mask=in_head, other=0.0).to(COMPUTE) * (tl.full([], scale, COMPUTE) * LOG2_E)
    k_rows = HeadRows(k_ptr, k_strides, 0, key_rows)
    v_rows = HeadRows(v_ptr, v_strides, 0, key_rows)
    keys = tl.arange(0, BLOCK_KEYS)

    largest = tl.full([BLOCK_KEYS], float("-inf"), COMPUTE)  # [BLOCK_KEYS]
    total = tl.zeros([BLOCK_KEYS], COMPUTE)  # [BLOCK_KEYS]
    output = tl.zeros([BLOCK_KEYS, BLOCK_HEAD], COMPUTE)  # [BLOCK_KEYS, BLOCK_HEAD]
    split_begin = split * keys_per_split
    split_end = split_begin + keys_per_split
    edges = keys_seen(0, 1, key_rows, left, right, 1, BLOCK_KEYS)
    CHECKED: tl.constexpr = (True, False, True)  # by part
    for part in tl.static_range(3):
        begin = tl.maximum(edges[part], split_begin)
        if mask_ptr is not None:
            next_attended = is_attended(mask_ptr, mask_strides, place, begin, keys, key_rows)  # [BLOCK_KEYS]
        for key in tl.range(begin, tl.minimum(edges[part + 1], split_end), BLOCK_KEYS, num_stages=STAGES):
            k = load_tile(k_rows, place, head, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, CHECKED[part])
            v = load_tile(v_rows, place, head, key, BLOCK_KEYS, HEAD, BLOCK_HEAD, WALK, CHECKED[part])
            scores = tl.sum(k.to(COMPUTE) * q[None, :], axis=1)  # [BLOCK_KEYS]
            if CHECKED[part]:
                scores = tl.where(is_seen(0, key + keys, 1, key_rows, left, right), scores, float("-inf"))
            if mask_ptr is not None:
                attended = next_attended
                next_attended = is_attended(mask_ptr, mask_strides, place, key + BLOCK_KEYS, keys, key_rows)
                scores = tl.where(attended, scores, float("-inf"))
                v = tl.where(attended[:, None], v, 0.0)
            new_largest = tl.maximum(largest, scores)
            subtracted = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # −∞ − −∞ is NaN
            weights = tl.exp2(scores - subtracted)
            shrink = tl.exp2(largest - subtracted)
            total = total * shrink + weights
            output = output * shrink[:, None] + weights[:, None] * v.to(COMPUTE)
            largest = new_largest

    largest_of_all = tl.max(largest, axis=0)
    weights = tl.exp2(largest - tl.where(largest_of_all == float("-inf"), 0.0, largest_of_all))
    sum_of_all = tl.sum(total * weights, axis=0)
    sees_nothing = sum_of_all == 0.0
    result = tl.sum(output * weights[:, None], axis=0) / tl.where(sees_nothing, 1.0, sum_of_all)  # [BLOCK_HEAD]
    lse = tl.where(sees_nothing, float("-inf") if SPLIT else float("inf"), largest_of_all + tl.log2(sum_of_all))
    row_of_split = (sequence.to(tl.int64) * n_heads + head) * n_splits + split
    tl.store(lse_ptr + row_of_split, lse)
    if SPLIT:
        pointers = output_ptr + row_of_split * HEAD + columns
    else:
        pointers = head_start(output_ptr, output_strides, place, head, 0) + columns.to(tl.int64) * output_strides[3]
    tl.store(pointers, result.to(output_ptr.dtype.element_ty), mask=in_head)


def suits_one_row(problem: Problem) -> bool:
    """Return whether this kernel computes the problem, and faster than tensor cores: measured in half precision.

    The problem has one query to each head of keys, and either a mask or rows of no multiple of 32 bytes. µs on an H200
    (with tensor cores; cuDNN): b4 h32, 1,024 keys with holes, d64: 15.3 (23.9; 19.3), b8 h16, 3,000 keys with holes,
    d40: 26.0 (68.7; 39.3), b63 h8, 4,101 keys, d40: 97.1 (104; 98.6), b30 h12, 4,096 keys, d72: 116 (138; 149). Without
    either it is slower: b128 h8, 512 keys, d64: 38.1 (35.1; 34.9). So it is where a few tiles are split, without a
    mask: b2 h8, 9,000 keys, d56: 16.4, by TMA 15.7. Heads of more than 128 elements spill on AMD GPUs.
    """
    adds_nothing = problem.bias is None and problem.only_adds_to_scores
    one_row = problem.queries == problem.group == 1
    if not (adds_nothing and one_row and problem.q.element_bytes == 2 and problem.head_block <= 128):
        return False
    return problem.mask is not None or (problem.head_size % 16 != 0 and fills_gpu(problem))


def fills_gpu(problem: Problem) -> bool:
    """Return whether one program for each head of keys fills the GPU, so that unsplit keys are read as fast."""
    return problem.sequences * problem.key_heads >= FILLED * problem.plan.multiprocessors
