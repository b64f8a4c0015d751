"""The default tiles of the portable backward: one function for each of its kernels chooses them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilesmith.ops.attention.problem import Problem, Tiles
from tilesmith.ops.runtime.config import Config


@dataclass(frozen=True)
class GradientConfig(Config):
    """Tiles of BLOCK_QUERIES × BLOCK_KEYS.

    `described`: TMA loads tiles, if it can walk the tensors. `bf16x3`: where the parts of exact single precision come
    from, see `split_operands.py`. `with_dq`: if one block holds all keys, the kernel of dk and dv computes dq too.
    `least_programs`: groups of heads are split until the kernel of dk and dv has so many programs. On an H200, b2 s63
    d48 with 48 heads on 8 key heads takes 11.2 µs, and 31.9 without.
    """

    BLOCK_QUERIES: int = 64
    BLOCK_KEYS: int = 64
    described: bool = True
    bf16x3: str = ""
    with_dq: bool = True
    least_programs: int = 256


# By the bytes of an element, whether TMA loads tiles, and the block that covers a head. Elements of two bytes by TMA
# have the fastest tiles on an H200 that do not spill with any supported release of Triton. Columns of `Tiles`: queries,
# keys, warps, stages.
_QUERY_TILES = {
    (2, True): {64: Tiles(64, 64, 4, 3), 128: Tiles(128, 64, 8, 3), 256: Tiles(64, 32, 8, 1)},
    (2, False): {64: Tiles(64, 32, 4, 2), 128: Tiles(64, 32, 8, 1), 256: Tiles(32, 32, 8, 1)},
    (4, True): {64: Tiles(16, 32, 8, 1), 128: Tiles(32, 16, 8, 1), 256: Tiles(16, 16, 8, 1)},
    (4, False): {64: Tiles(16, 32, 8, 1), 128: Tiles(32, 16, 8, 1), 256: Tiles(16, 16, 8, 1)},
}
_KEY_TILES = {
    (2, True): {64: Tiles(64, 64, 4, 3), 128: Tiles(32, 64, 4, 3), 256: Tiles(32, 64, 8, 1)},
    (2, False): {64: Tiles(32, 32, 4, 2), 128: Tiles(32, 32, 8, 1), 256: Tiles(16, 32, 8, 1)},
    (4, True): {64: Tiles(16, 16, 8, 2), 128: Tiles(16, 32, 8, 1), 256: Tiles(16, 16, 8, 1)},
    (4, False): {64: Tiles(16, 16, 8, 2), 128: Tiles(16, 32, 8, 1), 256: Tiles(16, 16, 8, 1)},
}


def source_of_parts(problem: Problem) -> str:
    """Return `bf16x3` for the kernels of the backward. Splitting wide heads on load exceeds the register budget."""
    return "on_load" if problem.visits_are_few and problem.head_block <= 32 else "stored"


def query_gradient_config(problem: Problem, described: bool, split: bool) -> GradientConfig:
    """Return the default tiles of the kernel that computes dq. `split`: the kernel splits exact single precision."""
    if split:
        keys, stages = 64 if problem.is_plain else 32, 1 if problem.gathers_bias else 2
        if problem.gathers_bias and problem.mask is not None:
            keys = 16  # 32 spill 368 bytes
        return GradientConfig(num_warps=4, num_stages=stages, BLOCK_KEYS=keys, bf16x3=source_of_parts(problem))
    config = _config(_QUERY_TILES, problem, described)
    if problem.is_plain:
        return config
    if problem.has_light_scores and described:
        # 84 µs for a triangle of 256 residues on an H200, 144 with twice the keys, 502 with half the queries.
        return replace(config, BLOCK_QUERIES=64, BLOCK_KEYS=32, num_warps=4, num_stages=3)
    # Soft cap and dropout take registers. With a mask and neither, eight warps spill 16 bytes on Ampere.
    warps = 4 if problem.has_light_scores and problem.mask is not None else 8
    return replace(config, BLOCK_QUERIES=min(config.BLOCK_QUERIES, 32), BLOCK_KEYS=32, num_warps=warps)


def key_gradient_config(problem: Problem, described: bool, split: bool) -> GradientConfig:
    """Return the default tiles of the kernel that computes dk and dv. `split` as above."""
    if split:
        return _key_config_of_parts(problem)
    if described and _is_short(problem):
        # All keys in one block, and so one kernel: b8 h8 s128 d64 takes 9.7 µs on an H200, 12.2 with two blocks of keys
        # and a kernel for dq. With many programs smaller ones share a multiprocessor better: b32 h16 takes 39, 46 with
        # the larger tiles and 54 with two kernels.
        queries, warps = (32, 4) if problem.sequences * problem.heads > 256 else (64, 8)
        return GradientConfig(num_warps=warps, num_stages=2, BLOCK_QUERIES=queries, BLOCK_KEYS=128)
    config = _config(_KEY_TILES, problem, described)
    if problem.packed and not described and problem.head_block <= 64:  # the starts of sequences take registers
        config = replace(config, num_warps=4, num_stages=1)
    queries, keys = config.BLOCK_QUERIES, config.BLOCK_KEYS
    with_dq = problem.keys <= keys  # dq takes registers too
    if problem.is_plain and not with_dq:
        return config
    if problem.has_light_scores and described and not with_dq:
        # 142 µs for a triangle of 256 residues, 820 for one of 512; 156 and 928 with twice the queries.
        return replace(config, BLOCK_QUERIES=32, BLOCK_KEYS=64, num_warps=4, num_stages=3)
    if not described and problem.head_block <= 64:
        return replace(config, BLOCK_QUERIES=16, BLOCK_KEYS=16, num_stages=2)
    if problem.q.element_bytes == 4 and problem.head_block <= 32:
        keys = 32  # with 16 the compiler aims at an occupancy of two programs, and spills for it
    return replace(config, BLOCK_QUERIES=min(queries, 32), BLOCK_KEYS=min(keys, 64), num_warps=8, num_stages=2)


def _is_short(problem: Problem) -> bool:
    """Return whether a block of 128 holds all keys and a block of 64 does not.

    Without GQA: with two heads per key head one kernel takes 15 µs, and two kernels take 14.
    """
    narrow = problem.head_block <= 64 and problem.q.element_bytes == 2
    alone = problem.group == 1 and not problem.packed
    return problem.is_plain and narrow and alone and 64 < problem.keys <= 128


def _key_config_of_parts(problem: Problem) -> GradientConfig:
    """Return tiles of 64 keys, which Hopper's tensor cores need, and as many queries as do not spill.

    On an H200, b8 h8 s128 d64 with groups of two takes 30 µs, and 13 for dq. It takes 73 and 43 where the compiler
    splits operands of smaller tiles, and 26 with 64 queries, which spill. 256 sequences of h4 s64 d32 with a bias take
    74 with dq in the same kernel, and 49 and 36 in two kernels.
    """
    has_room = problem.head_block <= 32 and not problem.gathers_bias  # for dq beside dk and dv, or for more queries
    with_dq = has_room and not problem.packed and problem.keys <= 64
    # With a mask and a bias, 32 queries spill 160 bytes with Triton 3.8.
    has_more = problem.mask is None if has_room else problem.is_plain and not problem.packed
    queries = 32 if has_more and not with_dq else 16
    return GradientConfig(
        num_warps=4, num_stages=2, BLOCK_QUERIES=queries, bf16x3=source_of_parts(problem), with_dq=with_dq
    )  # fmt: skip


def _config(tiles: dict[tuple[int, bool], dict[int, Tiles]], problem: Problem, described: bool) -> GradientConfig:
    sizes = tiles[min(problem.q.element_bytes, 4), described]
    queries, keys, warps, stages = sizes[max(problem.head_block, 64)]
    return GradientConfig(
        num_warps=warps, num_stages=stages, BLOCK_QUERIES=queries, BLOCK_KEYS=keys, described=described
    )  # fmt: skip
