"""Prepare unsloth's kernels for import without its quantisation libraries."""

from contextlib import nullcontext

import triton
from _bare import bare
from triton.language.extra import libdevice


def settings(n: int) -> tuple[int, int]:
    """Return a block of at least n elements and its number of warps."""
    block = triton.next_power_of_2(n)
    return block, 4 if block < 2048 else 8


bare("unsloth", "unsloth.kernels")
bare("unsloth.device_type", DEVICE_TYPE="cuda", DEVICE_COUNT=1)
bare(
    "unsloth.kernels.utils", calculate_settings=settings, torch_gpu_device=lambda device: nullcontext(),
    torch_device_stream=None, triton_tanh=libdevice.tanh, MAX_FUSED_SIZE=65536,
)  # fmt: skip
