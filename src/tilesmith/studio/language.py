"""Names of Triton, PyTorch and CUDA with their documentation, for completion and hover in the editor."""

from __future__ import annotations

import inspect
import re
from functools import cache
from types import ModuleType
from typing import Any

_TORCH = ("empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "arange", "Tensor", "float32",
          "float16", "bfloat16", "int32", "int64", "bool")  # fmt: skip
_CUDA = {
    "threadIdx": "threadIdx.x, .y, .z: the number of this thread in its block.",
    "blockIdx": "blockIdx.x, .y, .z: the number of this block in the grid.",
    "blockDim": "blockDim.x, .y, .z: the number of threads in a block.",
    "gridDim": "gridDim.x, .y, .z: the number of blocks in the grid.",
    "__global__": "Marks a kernel: runs on the GPU, launched from the host with <<<blocks, threads>>>.",
    "__device__": "Marks a function that runs on the GPU and is called from GPU code.",
    "__shared__": "Places an array in shared memory: one copy per block, visible to all its threads.",
    "__syncthreads": "__syncthreads(): waits until every thread of the block is here. Never inside a branch that "
    "only some threads take.",
    "__shfl_down_sync": "__shfl_down_sync(mask, value, delta): the value of the lane `delta` further in this warp.",
    "atomicAdd": "atomicAdd(address, value): adds to memory in one step that no other thread interrupts.",
    "cudaMalloc": "cudaMalloc(&pointer, bytes): allocates GPU memory.",
    "cudaMemcpy": "cudaMemcpy(to, from, bytes, kind): copies between host and GPU, and waits.",
    "cudaFree": "cudaFree(pointer): frees GPU memory.",
    "cudaDeviceSynchronize": "cudaDeviceSynchronize(): waits until the GPU has done everything so far.",
    "rsqrtf": "rsqrtf(x): 1 / √x in float32.",
    "expf": "expf(x): eˣ in float32.",
    "dim3": "dim3(x, y, z): a size of blocks or grids.",
}


@cache
def words() -> dict[str, list[dict[str, str]]]:
    """Return the names by language, each with its signature and the first paragraph of its documentation."""
    import torch
    import triton
    import triton.language as tl

    python = [
        *_members("tl", tl),
        *_members("triton", triton, ("jit", "cdiv", "next_power_of_2", "autotune", "heuristics", "Config")),
        *_members("torch", torch, _TORCH),
    ]
    return {
        "python": python,
        "cuda": [{"name": name, "signature": name, "text": text} for name, text in _CUDA.items()],
    }


def _members(prefix: str, module: ModuleType, names: tuple[str, ...] = ()) -> list[dict[str, str]]:
    found = []
    for name in names or sorted(vars(module)):
        member = getattr(module, name, None)
        if name.startswith("_") or member is None or (isinstance(member, ModuleType) and name != "math"):
            continue
        found.append({"name": f"{prefix}.{name}", "signature": _signature(f"{prefix}.{name}", member),
                      "text": _documentation(member)})  # fmt: skip
    return found


def _signature(name: str, member: Any) -> str:
    if not callable(member):
        return name
    try:
        parameters = inspect.signature(getattr(member, "fn", member)).parameters.values()
    except (TypeError, ValueError):
        return name
    shown = [
        one.name if one.default is inspect.Parameter.empty else f"{one.name}={_value(one.default)}"
        for one in parameters
        if not one.name.startswith("_")
    ]
    return f"{name}({', '.join(shown)})"


def _value(default: Any) -> str:
    text = repr(default)
    return text if len(text) < 20 else "…"


def _documentation(member: Any) -> str:
    text = inspect.getdoc(getattr(member, "fn", member)) or ""
    if not callable(member) or text == inspect.getdoc(type(member)):
        return ""
    paragraph = text.split("\n\n")[0].replace("\n", " ").strip()
    return re.sub(r":\w+:`([^`]*)`|``([^`]*)``", r"\1\2", paragraph)[:400]  # reStructuredText's marks
