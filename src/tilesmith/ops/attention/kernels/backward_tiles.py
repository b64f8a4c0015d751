"""The tiles of the backward: one function for each of its kernels chooses them, from what is known before a launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.runtime.config import Config

Tiles = tuple[int, int, int, int]


@dataclass(frozen=True)
class GradientConfig(Config):
    """Tiles of BLOCK_QUERIES × BLOCK_KEYS; `described` where they are fetched by the copy engine, if it can.

    `planes`: of single precision, see `planes.py`. `whole`: a block that holds all keys makes dq too.
    """

    BLOCK_QUERIES: int = 64
    BLOCK_KEYS: int = 64
    described: bool = True
    planes: str = ""
    whole: bool = True


# By the bytes of an element, whether tiles are described, and the block that covers a head: queries, keys, warps and
# stages. For elements of two bytes that are described, the fastest of those on an H200 that do not spill with any
# supported release of Triton.
_QUERY_TILES = {
    (2, True): {64: (64, 64, 4, 3), 128: (128, 64, 8, 3), 256: (64, 32, 8, 1)},
    (2, False): {64: (64, 32, 4, 2), 128: (64, 32, 8, 1), 256: (32, 32, 8, 1)},
    (4, True): {64: (16, 32, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 8, 1)},
    (4, False): {64: (16, 32, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 8, 1)},
}
_KEY_TILES = {
    (2, True): {64: (64, 64, 4, 3), 128: (32, 64, 4, 3), 256: (32, 64, 8, 1)},
    (2, False): {64: (32, 32, 4, 2), 128: (32, 32, 8, 1), 256: (16, 32, 8, 1)},
    (4, True): {64: (16, 16, 8, 2), 128: (16, 32, 8, 1), 256: (16, 16, 8, 1)},
    (4, False): {64: (16, 16, 8, 2), 128: (16, 32, 8, 1), 256: (16, 16, 8, 1)},
}


def where_of_gradients(problem: Problem) -> str:
    """Where the kernels of the backward have planes from. For wider heads there is no room to split them in."""
    return "here" if problem.visits_are_few and problem.head_block <= 32 else "stored"


def query_gradient_config(problem: Problem, described: bool, planes: bool) -> GradientConfig:
    if planes:
        keys, stages = 64 if problem.is_plain else 32, 1 if problem.gathers_bias else 2
        return GradientConfig(num_warps=4, num_stages=stages, BLOCK_KEYS=keys, planes=where_of_gradients(problem))
    config = _config(_QUERY_TILES, problem, described)
    if problem.is_plain:
        return config
    if problem.has_light_scores and described:
        # 84 µs for a triangle of 256 residues on an H200, 144 with twice the keys, 502 with half the queries.
        return replace(config, BLOCK_QUERIES=64, BLOCK_KEYS=32, num_warps=4, num_stages=3)
    # What is done to scores takes registers.
    return replace(config, BLOCK_QUERIES=min(config.BLOCK_QUERIES, 32), BLOCK_KEYS=32, num_warps=8)


def key_gradient_config(problem: Problem, described: bool, planes: bool) -> GradientConfig:
    if planes:
        return _key_config_of_planes(problem)
    if described and _is_short(problem):
        # All keys in one block, and so one kernel: b8 h8 s128 d64 takes 9.7 µs on an H200, 12.2 with the keys in two
        # blocks and a kernel for dq. Where programs share a multiprocessor, smaller ones do so better: b32 h16 takes
        # 39, 46 with the larger and 54 with two kernels.
        queries, warps = (32, 4) if problem.sequences * problem.heads > 256 else (64, 8)
        return GradientConfig(num_warps=warps, num_stages=2, BLOCK_QUERIES=queries, BLOCK_KEYS=128)
    config = _config(_KEY_TILES, problem, described)
    queries, keys = config.BLOCK_QUERIES, config.BLOCK_KEYS
    whole = problem.keys <= keys  # one block makes dq as well, which takes registers too
    if problem.is_plain and not whole:
        return config
    if problem.has_light_scores and described and not whole:
        # 142 µs for a triangle of 256 residues, 820 for one of 512; 156 and 928 with twice the queries.
        return replace(config, BLOCK_QUERIES=32, BLOCK_KEYS=64, num_warps=4, num_stages=3)
    if not described and problem.head_block <= 64:
        return replace(config, BLOCK_QUERIES=16, BLOCK_KEYS=16, num_stages=2)
    if problem.q.element_bytes == 4 and problem.head_block <= 32:
        keys = 32  # with 16 the compiler aims at two programs at once, and spills a little for it
    return replace(config, BLOCK_QUERIES=min(queries, 32), BLOCK_KEYS=min(keys, 64), num_warps=8, num_stages=2)


def _is_short(problem: Problem) -> bool:
    """Whether a block of 128 holds all keys, and half of it does not. Heads that share keys would take turns in it:
    with two of them it takes 15 µs, and two kernels 14."""
    narrow = problem.head_block <= 64 and problem.q.element_bytes == 2
    alone = problem.group == 1 and not problem.packed
    return problem.is_plain and narrow and alone and 64 < problem.keys <= 128


def _key_config_of_planes(problem: Problem) -> GradientConfig:
    """Of 64 keys, which Hopper's tensor cores want, with as many queries as do not spill.

    On an H200 for b8 h8 s128 d64 in groups of two: 30 µs, and 13 for dq; 73 and 43 where the compiler splits operands
    of smaller tiles, and 26 with 64 queries, which spill. For 256 sequences, h4 s64 d32 with a bias: 74 with dq; 49 and
    36 apart.
    """
    has_room = problem.head_block <= 32 and not problem.gathers_bias  # for dq beside dk and dv, or for more queries
    is_whole = has_room and not problem.packed and problem.keys <= 64
    # With a mask beside a bias twice the queries spill 160 bytes on Triton 3.8.
    has_more = problem.mask is None if has_room else problem.is_plain and not problem.packed
    queries = 32 if has_more and not is_whole else 16
    return GradientConfig(
        num_warps=4, num_stages=2, BLOCK_QUERIES=queries, planes=where_of_gradients(problem), whole=is_whole
    )  # fmt: skip


def _config(tiles: dict[tuple[int, bool], dict[int, Tiles]], problem: Problem, described: bool) -> GradientConfig:
    sizes = tiles[min(problem.q.element_bytes, 4), described]
    queries, keys, warps, stages = sizes[max(problem.head_block, 64)]
    return GradientConfig(
        num_warps=warps, num_stages=stages, BLOCK_QUERIES=queries, BLOCK_KEYS=keys, described=described
    )  # fmt: skip
