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
    - `overlapped`: instead, the kernel in Gluon that stores a tile while the next is multiplied: of one matrix, with
      nothing done to its sums but to round them. Its own sizes are in `HopperProductConfig`.
    - `planes`: where single precision that must be exact is split into bf16: beforehand, and "stored"; "here", in each
      tile; or by a kernel that only Hopper has, there one step "ahead", or what is left of the product in "registers".
    - `shares`: so many programs share the depth of a tile; 0 for as many as give every multiprocessor one, or
      `programs_per_multiprocessor`.
    - `programs_per_multiprocessor`: with descriptors, as many programs, each taking tile after tile; 0 for one program
      per tile.
    - GROUP: rows of tiles that are taken together. FLATTEN, WARP_SPECIALIZE: see the kernel with descriptors.
    - HALVES: a tile is finished and stored in two halves, which takes half the shared memory.
    - A_SLOTS, B_SLOTS: with planes in registers, for how many steps there is room in shared memory.
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
    A_SLOTS: int = 8
    B_SLOTS: int = 4
    descriptors: bool = False
    overlapped: bool = False
    planes: str = ""
    shares: int = 1
    programs_per_multiprocessor: int = 0

    @property
    def all_warps(self) -> int:
        """With planes in registers, of three warpgroups."""
        return 3 * self.num_warps if self.planes == "registers" else self.num_warps

    def consistent(
        self, *, describable: bool, exact: bool, splittable: bool, ahead: bool, walkable: bool, overlappable: bool,
        matrices: int, activation: str,
    ) -> ProductConfig:  # fmt: skip
        """Without what does not go together, or not with these operands. A sweep may ask for anything."""
        planes = self.planes if exact else ""
        warps = self.num_warps
        if planes == "registers" and not (walkable and (warps, self.BLOCK_M, self.BLOCK_K) == (4, 128, 32)):
            planes, warps = "ahead", max(self.BLOCK_M // 16, 1)
        # A warpgroup of tensor cores multiplies 64 rows, 16 for each of its warps.
        ahead = ahead and warps % 4 == 0 and 16 * warps <= self.BLOCK_M and self.BLOCK_K >= 16
        if (planes == "stored" and not splittable) or (planes == "ahead" and not ahead):
            planes = "here"
        stored = planes == "stored"
        descriptors = self.descriptors and planes not in ("here", "ahead", "registers") and (describable or stored)
        # Triton's compiler fails, or aborts the process, on other combinations; gelu makes it run out of registers.
        specialized = self.WARP_SPECIALIZE and descriptors and self.num_warps == 4 and self.BLOCK_M >= 128
        specialized = specialized and not stored and matrices * self.shares == 1 and activation != "gelu"
        return replace(
            self,
            num_warps=warps,
            planes=planes,
            descriptors=descriptors,
            overlapped=overlappable and self == OVERLAPPED,
            WARP_SPECIALIZE=specialized,
            FLATTEN=self.FLATTEN and descriptors and not specialized,
            HALVES=self.HALVES and descriptors and not specialized,
            IMPRECISE=min(self.IMPRECISE, self.BLOCK_K),
            programs_per_multiprocessor=self.programs_per_multiprocessor if descriptors else 0,
        )

    def filling(self, tiles_of: Callable[[int, int], int], depth: int, multiprocessors: int) -> ProductConfig:
        """With shares in numbers: of 128 terms at least, or their partial sums would take longer than they do. None is
        empty where all others are of the same number of steps."""
        if self.shares:
            return self
        tiles = max(tiles_of(self.BLOCK_M, self.BLOCK_N), 1)
        programs = multiprocessors * max(self.programs_per_multiprocessor, 1)
        shares = max(min(programs // tiles, depth // 128), 1)
        steps = max(-(-depth // self.BLOCK_K), 1)
        return replace(self, shares=-(-steps // -(-steps // shares)))


# Besides what it says, what computes instead where that cannot, or where a sweep asks for anything else.
OVERLAPPED = ProductConfig(
    num_warps=8, num_stages=3, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, HALVES=True, FLATTEN=True, descriptors=True,
    overlapped=True, programs_per_multiprocessor=1,
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """All that the choice depends on. Sizes are powers of two at or above the real ones.

    `ahead`: whether the kernel that splits one step ahead can compute it. `walkable`: whether that with planes in
    registers can. `overlappable`: whether that which stores a tile while it multiplies the next can.
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
    walkable: bool = False
    overlappable: bool = False

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
    only if each is then read by many tiles.

    On an H200 in µs, stored and with planes in registers: 1024×512×4096 61.9 and 47.4, 4096×4096×512 179 and 167, 2048³
    178 and 169, 4096³ 1,382 and 1,391.
    """
    products = look.rows * look.columns * look.depth * look.matrices
    if look.walkable and products < 4096**3:
        return False
    if look.ahead and 16 < look.depth <= 128:  # 16,384×640×128 on an H200: 54.7 µs stored, 47.5 split one step ahead
        return False
    return look.splittable and products >= 512**3 and min(look.rows, look.columns) >= 512


def _ahead_config(look: Look) -> ProductConfig:
    """Planes made in each tile one step ahead: large tiles where they fill the GPU, else small ones.

    On an H200 in µs with its sum of shares, a as it lies or transposed where the depth is 16384; with planes in
    registers, and one step ahead in tiles of 128 and of 64:

    | rows × columns × depth | registers | 128  | 64   |
    |------------------------|-----------|------|------|
    | 16384 × 512 × 128      | 31.7      | 43.7 |      |
    | 16384 × 128 × 128      | 12.6      | 12.2 |      |
    | 16384 × 128 × 512      | 26.4      | 30.9 |      |
    | 512 × 128 × 16384      | 33.9      | 37.7 | 41.0 |
    | 128 × 128 × 16384      | 17.4      | 16.9 | 15.0 |
    | 1024 × 4096 × 512      | 45.8      | 55.7 | 67.4 |
    | 1024 × 512 × 512       | 15.8      | 15.3 | 13.6 |
    | 4096 × 256 × 64        | 9.2       |      | 6.0  |
    | 4096 × 64 × 256        | 10.3      |      | 11.4 |

    In batches with tiles of 64 × 64 and with those chosen: 64×8192×512 four times 43.3 and 32.2, 64×32×4096 64 times
    43.3 and 32.2; 512×8192×64 four times 59.2 with tiles of 128, 51.5 with 64.

    Of 16 columns a warpgroup has little to multiply, and narrow tiles of the plain form are as fast: 2048×16×2048, four
    of it, 30.6 µs, and 32.2 split ahead; 116 with tiles of 64.
    """
    if look.columns <= 16:
        return ProductConfig(
            num_warps=4, num_stages=3, BLOCK_M=64, BLOCK_N=16, BLOCK_K=32, planes="here", shares=0,
            programs_per_multiprocessor=2,
        )  # fmt: skip
    small = ProductConfig(
        num_warps=4, num_stages=1, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, planes="ahead", shares=0,
        programs_per_multiprocessor=2,
    )  # fmt: skip
    if look.columns <= 32:
        return replace(small, BLOCK_N=32, programs_per_multiprocessor=4)
    if look.rows <= 64 and look.columns >= 512:
        return replace(small, BLOCK_N=128)
    fills = look.tiles(128, 128) * max(look.depth // 128, 1) >= look.multiprocessors // 2
    large = fills and min(look.rows, look.columns) >= 128 and look.tiles(128, 128) > 1 and look.depth > 64
    results = look.rows * look.columns * look.matrices
    few = results <= 1024 * 512 and results * look.depth <= 1024 * 512 * 512
    if look.walkable and large and not few and (look.columns > 128 or look.depth > 128):
        # 1024×1024×512: 17.9 µs in tiles of 64 columns, 20.7 of 128.
        is_shallow = look.tiles(128, 128) < look.multiprocessors // 2 and look.depth <= 512
        return replace(IN_REGISTERS, BLOCK_N=64) if is_shallow else IN_REGISTERS
    if look.walkable and look.columns <= 64 and look.rows >= 2048 and look.depth > 128:
        # Of columns so few there are few tiles: half as wide, there are more, and all depth has room.
        return replace(IN_REGISTERS, BLOCK_N=32, B_SLOTS=8, shares=1)
    if large and not few:
        return ProductConfig(num_warps=8, num_stages=1, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, planes="ahead", shares=0)
    return small


# Two warpgroups have 64 rows each. All shared memory is taken: 96 KB for b's planes, 128 KB for rows of a.
IN_REGISTERS = ProductConfig(
    num_warps=4, num_stages=1, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, planes="registers", shares=0
)


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
            OVERLAPPED,
            planes=planes,
            BLOCK_K=block_k,
            overlapped=look.overlappable and look.tiles(128, 256) > look.multiprocessors,
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
