"""Several processes under torchrun, each with a copy of the model (DDP) or with a shard of it (FSDP2).

The batch size counts the samples of all processes, so one process and several train alike.
"""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tilesmith.training.running.mixed_precision import Rounded

MARKER = "tilesmith work"
SECONDS_FOR_WORK_TO_END = 5.0


class PlaceError(Exception):
    """The environment names no place among several processes; the message is one line for the user."""


@dataclass(frozen=True)
class Place:
    """This process's rank, the number of processes, and this process's device."""

    device: torch.device
    rank: int = 0
    processes: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def alone() -> Place:
    """Return the place of a single process: the GPU if there is one."""
    has_gpu = torch.cuda.is_available()
    return Place(torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu"))


@contextmanager
def joined() -> Iterator[Place]:
    """Yield this process's place among torchrun's processes, or the place of a single process without torchrun."""
    if "WORLD_SIZE" not in os.environ:
        yield alone()
        return
    has_gpu = torch.cuda.is_available()
    if not dist.is_initialized():
        _require_torchrun(has_gpu)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    if dist.is_initialized():  # the caller owns the process group
        yield Place(device, dist.get_rank(), dist.get_world_size())
        return
    dist.init_process_group("nccl" if has_gpu else "gloo", device_id=device if has_gpu else None)
    try:
        with _work_dropped_at_end():
            yield Place(device, dist.get_rank(), dist.get_world_size())
            dist.barrier()  # no process closes its connections while another one still reads from them
    finally:
        dist.destroy_process_group()


def _require_torchrun(has_gpu: bool) -> None:
    """Raise PlaceError where WORLD_SIZE is set, but not what torchrun sets beside it."""
    numbers = ("WORLD_SIZE", "RANK", "MASTER_PORT", *(("LOCAL_RANK",) if has_gpu else ()))
    given = {name: os.environ.get(name, "") for name in ("MASTER_ADDR", *numbers)}
    odd = [name for name in numbers if not given[name].isdecimal()] + [name for name in given if not given[name]]
    if not odd and int(given["RANK"]) >= int(given["WORLD_SIZE"]):
        odd = ["RANK"]
    if odd:
        raise PlaceError(
            f"WORLD_SIZE is set in the environment, as torchrun does, but {odd[0]} is {given[odd[0]]!r}: "
            "start several processes with torchrun, or unset WORLD_SIZE"
        )


class _Marker:
    """An object whose end can be observed."""


@contextmanager
def _work_dropped_at_end() -> Iterator[None]:
    """At the end of the block, wait until the process group has dropped all work of the block.

    Work keeps a copy of the thread-local state of the thread that started it, and that state may hold Python objects.
    A thread of gloo needs the GIL to drop them, but destroying the group joins this thread while holding the GIL. So
    the block puts an object into the state: when the object is gone, all work is.
    """
    marker = _Marker()
    alive = weakref.ref(marker)
    torch._C._stash_obj_in_tls(MARKER, marker)
    del marker
    try:
        yield
    finally:
        if hasattr(torch._C, "_remove_obj_from_tls"):
            torch._C._remove_obj_from_tls(MARKER)
        else:  # before PyTorch 2.12
            torch._C._stash_obj_in_tls(MARKER, None)
        gc.collect()  # DDP keeps a copy of the state, too
        deadline = time.monotonic() + SECONDS_FOR_WORK_TO_END
        while alive() is not None and time.monotonic() < deadline:
            time.sleep(0.001)  # releases the GIL


@dataclass(frozen=True)
class Prepared:
    """The module that a step calls. `synchronised(last)` surrounds each micro-batch."""

    module: nn.Module
    synchronised: Callable[[bool], AbstractContextManager[None]]


def prepare(model: nn.Module, place: Place, dtype: torch.dtype, *, shard: bool) -> Prepared:
    """Return the model on its device, computing in `dtype`, with gradients averaged over all processes."""
    model.to(place.device)
    if shard:
        return _sharded(model, place, dtype)
    module = model if dtype == torch.float32 else Rounded(model, dtype)
    if place.processes == 1:
        return Prepared(module, lambda last: nullcontext())
    replica = DistributedDataParallel(module, device_ids=[place.device] if place.device.type == "cuda" else None)
    return Prepared(replica, lambda last: nullcontext() if last else replica.no_sync())


def _sharded(model: nn.Module, place: Place, dtype: torch.dtype) -> Prepared:
    """Shard layer by layer: a process gathers the parameters of one layer and of the root at a time."""
    mesh = init_device_mesh(place.device.type, (place.processes,))
    # No cast of inputs: activations have the parameters' dtype already, and rotary tables must keep theirs.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh, mp_policy=policy)
    root = fully_shard(model, mesh=mesh, mp_policy=policy)

    def synchronised(last: bool) -> AbstractContextManager[None]:
        assert isinstance(root, FSDPModule)
        root.set_requires_gradient_sync(last)
        return nullcontext()

    return Prepared(model, synchronised)


def mean_over_processes(values: Tensor) -> Tensor:
    """Return the mean of the values of all processes."""
    if dist.is_initialized():
        dist.all_reduce(values)
        values /= dist.get_world_size()
    return values


def true_anywhere(value: bool, place: Place) -> bool:
    """Return whether the value is true in any process. All processes must call this together."""
    if place.processes == 1:
        return value
    found = torch.tensor(float(value), device=place.device)
    dist.all_reduce(found)
    return bool(found.item() > 0)


def gathered(tensor: Tensor) -> Tensor:
    """Return the full tensor on every process; shards are gathered."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: Tensor, value: Tensor) -> Tensor:
    """Return a full value on the device of a tensor, sharded like that tensor."""
    value = value.to(tensor.device)
    return distribute_tensor(value, tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else value
