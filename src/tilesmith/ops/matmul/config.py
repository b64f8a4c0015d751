"""How a product is computed: its form, its tiles, its shares of depth. One function chooses, from sizes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tilesmith.ops.runtime.config import Config, bucket


@dataclass(frozen=True)
class ProductConfig(Config):
    """Tiles of BLOCK_M × BLOCK_N, BLOCK_K of depth at a time, and which of the kernels takes them.

    - `descriptors`: the form for Hopper's copy engine, where the operands' layout allows it; else plain pointers.
    - `planes`: where single precision that must be exact is split into bf16: beforehand, and "stored"; "here", in each
      tile; or there one step "ahead", by the kernel that only Hopper has.
    - `shares`: so many programs share the depth of a tile; 0 for as many as give every multiprocessor one, or
      `programs_per_multiprocessor`.
    - `programs_per_multiprocessor`: with descriptors, as many programs, each taking tile after tile; 0 for one program
      per tile.
    - GROUP: rows of tiles that are taken together. FLATTEN, WARP_SPECIALIZE: see the kernel with descriptors.
    - HALVES: a tile is finished and stored in two halves, which takes half the shared memory.
    - IMPRECISE: how many products of float8 tensor cores add up in their own, shorter format; 0 for all of them.
    """

    BLOCK_M: int = 128
    BLOCK_N: int = 128
    BLOCK_K: int = 32
    GROUP: int = 8
    FLATTEN: bool = False
    WARP_SPECIALIZE: bool = False
    HALVES: bool = False
    IMPRECISE: int = 0
    descriptors: bool = False
    planes: str = ""
    shares: int = 1
    programs_per_multiprocessor: int = 0

    def consistent(
        self, *, describable: bool, exact: bool, splittable: bool, ahead: bool, matrices: int, activation: str
    ) -> ProductConfig:
        """Without what does not go together, or not with these operands. A sweep may ask for anything."""
        planes = self.planes if exact else ""
        # A warpgroup of tensor cores multiplies 64 rows, 16 for each of its warps.
        ahead = ahead and self.num_warps % 4 == 0 and 16 * self.num_warps <= self.BLOCK_M and self.BLOCK_K >= 16
        if (planes == "stored" and not splittable) or (planes == "ahead" and not ahead):
            planes = "here"
        stored = planes == "stored"
        descriptors = self.descriptors and planes not in ("here", "ahead") and (describable or stored)
        # Triton's compiler fails, or aborts the process, on other combinations; gelu makes it run out of registers.
        specialized = self.WARP_SPECIALIZE and descriptors and self.num_warps == 4 and self.BLOCK_M >= 128
        specialized = specialized and not stored and matrices * self.shares == 1 and activation != "gelu"
        return replace(
            self,
            planes=planes,
            descriptors=descriptors,
            WARP_SPECIALIZE=specialized,
            FLATTEN=self.FLATTEN and descriptors and not specialized,
            HALVES=self.HALVES and descriptors and not specialized,
            IMPRECISE=min(self.IMPRECISE, self.BLOCK_K),
            programs_per_multiprocessor=self.programs_per_multiprocessor if descriptors else 0,
        )

    def filling(self, tiles_of: Callable[[int, int], int], depth: int, multiprocessors: int) -> ProductConfig:
        """With shares in numbers: of 128 terms at least, or their partial sums would take longer than they do."""
        if self.shares:
            return self
        tiles = max(tiles_of(self.BLOCK_M, self.BLOCK_N), 1)
        programs = multiprocessors * max(self.programs_per_multiprocessor, 1)
        return replace(self, shares=max(min(programs // tiles, depth // 128), 1))


@dataclass(frozen=True)
class Look:
    """All that the choice depends on. Sizes are powers of two at or above the real ones.

    `ahead`: whether the kernel that splits one step ahead can compute it.
    """

    rows: int
    columns: int
    depth: int
    matrices: int
    dtype: torch.dtype
    tf32: bool
    describable: bool
    splittable: bool
    target: str
    multiprocessors: int
    interpreted: bool = False
    ahead: bool = False

    @property
    def exact(self) -> bool:
        """Whether single precision must be put together from bf16. AMD's matrix units take it as it is."""
        return self.dtype == torch.float32 and not self.tf32 and self.target.startswith("cuda")

    def tiles(self, block_m: int, block_n: int) -> int:
        return -(-self.rows // block_m) * -(-self.columns // block_n) * self.matrices


def product_config(look: Look) -> ProductConfig:
    on_hopper = look.target == "cuda:90"
    if look.exact and look.interpreted:
        return _portable_config(look)  # the interpreter multiplies exactly, and its time goes with the products
    if look.exact and not _is_worth_storing(look):
        return _ahead_config(look) if look.ahead else _exact_config(look)
    if look.exact:
        return _hopper_config(look, planes="stored") if on_hopper else replace(LARGE_TILES, planes="stored")
    if on_hopper and look.describable and (look.dtype.itemsize < 4 or look.tf32):
        return _hopper_config(look, planes="")
    return _portable_config(look)


# The largest that neither Ampere nor AMD runs out of registers for.
LARGE_TILES = ProductConfig(num_warps=8, num_stages=3, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32)


def _is_worth_storing(look: Look) -> bool:
    """To store planes moves 10 bytes per element and costs a launch: below 512³ that is most of the time, and it pays
    only if each is then read by many tiles."""
    products = look.rows * look.columns * look.depth * look.matrices
    if look.ahead and 16 < look.depth <= 128:  # 16,384×640×128 on an H200: 54.7 µs stored, 47.5 split one step ahead
        return False
    return look.splittable and products >= 512**3 and min(look.rows, look.columns) >= 512


def _ahead_config(look: Look) -> ProductConfig:
    """Planes made in each tile one step ahead: large tiles where they fill the GPU, else small ones.

    On an H200 in µs, in a trial form that had no edges, with tiles of 128 and of 64, and with planes made in the step
    itself:

    | rows × columns × depth | 128  | 64   | in the step |
    |------------------------|------|------|-------------|
    | 16384 × 128 × 128      | 10.8 | 12.2 | 13.9        |
    | 16384 × 128 × 512      | 26.9 | 34.2 | 39.7        |
    | 512 × 128 × 16384      | 34.9 | 39.2 | 47.3        |
    | 128 × 128 × 16384      | 17.4 | 16.3 | 21.3        |
    | 4096 × 256 × 64        |      | 6.1  | 8.4         |
    | 64 × 256 × 4096        |      | 8.6  | 13.0        |
    | 64 × 64 × 64, 512 times |     | 8.0  | 13.8        |

    Of 16 columns a warpgroup has little to multiply, and narrow tiles of the plain form are as fast: 2048×16×2048, four
    of it, 30.6 µs, and 32.2 split ahead; 116 with tiles of 64.
    """
    if look.columns <= 16:
        return ProductConfig(
            num_warps=4, num_stages=3, BLOCK_M=64, BLOCK_N=16, BLOCK_K=32, planes="here", shares=0,
            programs_per_multiprocessor=2,
        )  # fmt: skip
    fills = look.tiles(128, 128) * max(look.depth // 128, 1) >= look.multiprocessors // 2
    if fills and look.tiles(128, 128) > 1 and min(look.rows, look.columns) >= 128:
        return ProductConfig(num_warps=8, num_stages=1, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, planes="ahead", shares=0)
    return ProductConfig(
        num_warps=4, num_stages=1, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, planes="ahead", shares=0,
        programs_per_multiprocessor=2,
    )  # fmt: skip


def _exact_config(look: Look) -> ProductConfig:
    """Planes made in each tile.

    The larger the tile, the less often an element is split and stored: but where loads must be made one element at a
    time, their addresses take the registers.
    """
    fills = look.tiles(128, 128) * max(look.depth // 128, 1) >= look.multiprocessors // 2
    if fills and look.target == "cuda:90" and look.describable and min(look.rows, look.columns) >= 128:
        return ProductConfig(num_warps=8, num_stages=3, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, planes="here", shares=0)
    return ProductConfig(num_warps=8, num_stages=2, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, planes="here", shares=0)


def _hopper_config(look: Look, planes: str) -> ProductConfig:
    bytes_each = 2 if planes else look.dtype.itemsize
    block_k = 128 // bytes_each  # 128 bytes: the widest row that the copy engine spreads over all banks
    shared = ProductConfig(descriptors=True, planes=planes, BLOCK_K=block_k)
    if look.rows <= 64:
        return _narrow_config(look, shared, bytes_each)
    busy = 0.9 * look.multiprocessors
    if look.tiles(128, 256) >= busy:
        # The largest tile whose sums fit in registers: each byte that arrives is used most often. Half of it waits in
        # shared memory to be stored. Three blocks under way and four are within 1 % of each other on an H200 at 4096
        # (778 and 784 TFLOP/s) and 8192 (719 and 722); three are ahead at 2048 (682 and 678).
        return replace(
            shared, num_warps=8, num_stages=3, BLOCK_N=256, HALVES=True, FLATTEN=True, programs_per_multiprocessor=1
        )
    if look.tiles(128, 128) >= busy:
        return replace(shared, num_warps=8, num_stages=4)
    if look.tiles(64, 128) >= busy:
        # Twice the depth at a time halves the waiting: 355 TFLOP/s at 1024 on an H200, 332 with the single depth, and
        # 324 with 128×64. Planes are six times as deep already: 75 TFLOP/s with the single depth.
        return replace(shared, num_warps=4, num_stages=4, BLOCK_M=64, BLOCK_K=block_k if planes else 2 * block_k)
    block_n = min(128, max(look.columns, 16))
    depth = look.depth * (6 if planes else 1)
    shares = _shares(look, look.tiles(128, block_n), depth // 1024)
    return replace(shared, num_warps=8, num_stages=4, BLOCK_N=block_n, shares=shares)


def _narrow_config(look: Look, shared: ProductConfig, bytes_each: int) -> ProductConfig:
    """Few rows: all time goes into reading b once, so what counts is that many bytes are under way.

    Blocks have up to 16 KiB, and there are about two programs for each multiprocessor. Three blocks under way are
    enough: 16×8192×8192 took 34.5 µs on an H200, 39.9 with six. The smallest tile takes blocks twice as deep, 35.0 µs,
    as it spills else with Triton 3.9.
    """
    block_m = 16 if look.rows <= 16 else 64
    block_n = min(max(bucket(look.columns * look.matrices // (2 * look.multiprocessors)), 32), 128)
    block_bytes = 32768 if block_m < block_n <= 32 else 16384
    block_k = block_bytes // max(block_m, block_n) // bytes_each
    block_k = block_k if look.depth >= block_k else shared.BLOCK_K
    shares = _shares(look, look.tiles(block_m, block_n), look.depth // (4 * block_k))
    return replace(shared, num_warps=4, num_stages=3, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, shares=shares)


def _portable_config(look: Look) -> ProductConfig:
    if look.rows <= 16:
        shares = _shares(look, look.tiles(16, 64), look.depth // 512)
        return ProductConfig(num_warps=4, num_stages=3, BLOCK_M=16, BLOCK_N=64, BLOCK_K=64, shares=shares)
    if look.dtype == torch.float64 or look.tiles(128, 128) < look.multiprocessors:
        shares = _shares(look, look.tiles(64, 64), look.depth // 512)
        return ProductConfig(num_warps=4, num_stages=2, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, shares=shares)
    return LARGE_TILES


def _shares(look: Look, tiles: int, most: int) -> int:
    """So many that every multiprocessor has work, but no more than are deep enough to be worth their partial sums."""
    wanted = look.multiprocessors // max(tiles, 1)
    return max(min(bucket(wanted + 1) // 2, most), 1)
